"""Writes held-out tasks with Hugging Face's greedy answers: python held_out.py FOLDER --out FILE [--count N].

For gates/tiny.rs, which asks a server the same and needs neither torch nor WordNet. Each sample has its prompt in ids,
the right output, and what transformers answers at temperature 0 in f32 (at most 16 tokens more than the right output
has). `free_from` is the first place from which another greedy answer need not be wrong: where its bf16 run differs, or
else the end of the answer; `close` are the places where the two largest logits of f32 are less than 0.5 apart.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import Gemma4ForConditionalGeneration

import chat
import data
import english
import model
import tokenizer as tok
from evaluate import held_out_samples

STOPS = (1, 50, 106)
SPARE = 16
CLOSE = 0.5


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


@torch.no_grad()
def greedy(hf, prompt, limit):
    """(tokens, indices where the two largest logits are close)."""
    made, close, cache, ids = [], [], None, torch.tensor([prompt])
    while len(made) < limit and (not made or made[-1] not in STOPS):
        out = hf(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        top = out.logits[0, -1].topk(2)
        if (top.values[0] - top.values[1]).item() < CLOSE:
            close.append(len(made))
        made.append(top.indices[0].item())
        ids = torch.tensor([[made[-1]]])
    return made, close


@torch.no_grad()
def differs_at(hf, prompt, made):
    """The first of `made` that this model would not choose after those before it; their number if none."""
    logits = hf(input_ids=torch.tensor([prompt + made])).logits[0, len(prompt) - 1 : -1]
    other = (logits.argmax(-1) != torch.tensor(made)).nonzero()
    return other[0].item() if len(other) else len(made)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("folder", type=Path)
    a.add_argument("--out", type=Path, required=True)
    a.add_argument("--count", type=int, default=40, help="samples of a family")
    a.add_argument("--wordnet", type=Path, default="/usr/share/wordnet")
    args = a.parse_args()
    chat.use_form_of(model.load(args.folder)[0])
    source, tokenizer = data.Source(english.sentences(args.wordnet)), tok.load(args.folder)
    f32, bf16 = (
        Gemma4ForConditionalGeneration.from_pretrained(args.folder, dtype=dtype, attn_implementation="eager").eval()
        for dtype in (torch.float32, torch.bfloat16)
    )
    lines = []
    for family in data.EVALUATED:
        for sample in held_out_samples(source, family, args.count, seed="server"):
            prompt, output = ids_of(tokenizer, sample.prompt), ids_of(tokenizer, sample.output)
            made, close = greedy(f32, prompt, len(output) + SPARE)
            lines.append(json.dumps({
                "family": family, "thinking": sample.thinking, "prompt": prompt, "output": output, "hf": made,
                "free_from": differs_at(bf16, prompt, made), "close": close,
            }))  # fmt: skip
        print(family, flush=True)
    args.out.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(lines)} samples")


if __name__ == "__main__":
    main()
