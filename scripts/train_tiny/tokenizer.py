"""BPE in Gemma's manner: tokenizer.json and tokenizer_config.json.

On raw text: a space becomes U+2581, nothing is put in front, runs of newlines are cut from the rest and are tokens of
their own, digits stay single, what has no token falls back to bytes, and no BOS is added. Control tokens have the ids
of the real vocabulary; the other low ids are <unusedN>. Ids: 0..106 control, from 107 newline runs, then the 256
bytes, then printable ASCII, then merges in the order they were learnt.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPACE = "\u2581"
CONTROL = {
    0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 4: "<mask>",
    46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>", 49: "<tool_call|>", 50: "<|tool_response>",
    51: "<tool_response|>", 52: '<|"|>', 98: "<|think|>", 100: "<|channel>", 101: "<channel|>",
    105: "<|turn>", 106: "<turn|>",
}  # fmt: skip
NEWLINE, NEWLINES = 107, 8
BYTES = NEWLINE + NEWLINES
PRINTABLE = BYTES + 256


def learn_merges(texts, count):
    """`count` pairs, by frequency. Words only: letters with at most one space in front, never across a word."""
    words = Tokenizer(models.BPE())
    words.normalizer = normalizers.Replace(" ", SPACE)
    words.pre_tokenizer = pre_tokenizers.Split(Regex(f"{SPACE}?[A-Za-z_]+|\\n+|[^A-Za-z_\\n]"), "isolated")
    alphabet = [SPACE] + [chr(c) for c in range(33, 127)]
    trainer = trainers.BpeTrainer(
        vocab_size=count + 400, initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False,
        min_frequency=2,
    )  # fmt: skip
    words.train_from_iterator(texts, trainer)
    merges = [tuple(m) for m in json.loads(words.to_str())["model"]["merges"]]
    return [m for m in merges if "\n" not in m[0] + m[1]][:count]


def build(texts, size):
    """The tokenizer of `size` entries learnt from `texts`; the same texts give the same file."""
    vocab = {CONTROL.get(i, f"<unused{i}>"): i for i in range(NEWLINE)}
    merges = []
    for n in range(1, NEWLINES + 1):
        vocab["\n" * n] = NEWLINE + n - 1
        merges += [("\n" * a, "\n" * (n - a)) for a in range(1, n)]
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = BYTES + b
    for c in [SPACE] + [chr(c) for c in range(33, 127)]:
        vocab[c] = len(vocab)
    for a, b in learn_merges(texts, 2 * size):
        if len(vocab) == size:
            break
        merges.append((a, b))
        vocab.setdefault(a + b, len(vocab))
    assert len(vocab) == size, f"only {len(vocab)} entries could be learnt"
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Replace(" ", SPACE)
    t.pre_tokenizer = pre_tokenizers.Split(Regex("\\n+"), "isolated")
    t.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_special_tokens([AddedToken(c, special=True, normalized=False) for c in CONTROL.values()])
    return t


CONFIG = {
    "tokenizer_class": "GemmaTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
    "unk_token": "<unk>", "add_bos_token": False,
}  # fmt: skip


def save(tokenizer, folder):
    tokenizer.save(str(Path(folder) / "tokenizer.json"), pretty=False)
    (Path(folder) / "tokenizer_config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")


def load(folder):
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
