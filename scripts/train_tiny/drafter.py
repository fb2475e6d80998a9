"""The MTP drafter of a trained checkpoint: drafter.py train|evaluate TARGET DRAFTER [--steps N].

train      learns to draft for TARGET (an exported folder) and writes DRAFTER in the published gemma4_assistant form.
evaluate   in transformers: how far greedy drafts agree with TARGET on held-out text, family by family.

A drafter has no K and V: its layers attend to the target's, sliding ones to those of its last sliding layer, global
ones to those of its last global layer. One draft takes a token and a state of the target's width: first the token the
target just chose and the state, after the final norm, that it chose it from; then its own draft and its own state,
projected back. Position and visible keys stay those of the first draft: the query stands at the chosen token's
position, the keys end before it.

Training unrolls DRAFTS drafts from every position, each from the text's own token, as it is where every earlier draft
was accepted. The loss is the cross entropy with the target's whole distribution. Evaluation drafts ROUND tokens.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import chat
import data
import english
import model
import tokenizer as tok
from model import GLOBAL, SLIDING

DRAFTS, ROUND = 3, 4
# Share of a text's positions where a first draft is to be the target's choice; less ends an evaluation with status 1.
AGREES_MIN = 0.6
# A position that the model does not write itself counts, at this weight: a prompt is no draft, but full of text.
READ_WEIGHT = 0.2
OUTER = ("pre_projection.weight", "post_projection.weight")


def shape_of(target):
    """A drafter for a target of this shape: four layers, half as wide, heads and window as the target's."""
    return model.Shape(vocab=target.vocab, hidden=64, intermediate=256, layers=(SLIDING, SLIDING, SLIDING, GLOBAL),
                       heads=target.heads, window=target.window, positions=target.positions, k_eq_v=target.k_eq_v,
                       shared=4)  # fmt: skip


def init(s, backbone, seed):
    """Fresh parameters; `backbone` is the target's hidden size B."""
    params = model.init(s, seed)
    g = torch.Generator().manual_seed(seed + 1)
    params["pre_projection.weight"] = torch.randn(s.hidden, 2 * backbone, generator=g) / (2 * backbone) ** 0.5
    params["post_projection.weight"] = torch.randn(backbone, s.hidden, generator=g) / s.hidden**0.5
    return params


@torch.no_grad()
def read(target, params, ids, documents):
    """(states after the final norm [B, T, H], {kind: K and V of the last layer of that kind that has its own})."""
    m = model.masks(target, documents)
    n = model.states(target, params, ids, m)
    return n, {target.layers[i]: m["kv"][i] for i in sorted(m["kv"])}


def drafts(s, params, target, target_params, ids, documents, seen, count):
    """Yields `count` logits [B, T, V]: number k from 1 at [b, t] is the draft after the tokens up to t + k.

    ids [B, T]; `seen` is [`read`] of them. Where t + k is beyond the row or the document, a row means nothing.
    """
    g, kv = seen
    m = model.masks(s, documents, ahead=1)
    m["kv"], m["names"] = kv, model.names_by_layer(s, params)
    for k in range(1, count + 1):
        embedding = F.embedding(ahead(ids, k), target_params["embed_tokens.weight"]) * target.embed_scale
        x = F.linear(torch.cat([embedding, g], -1), params["pre_projection.weight"])
        for i in range(len(s.layers)):
            x = model.layer(s, params, i, x, m)
        n = model.rms(x, params["norm.weight"])
        yield F.linear(n, params["embed_tokens.weight"])
        g = F.linear(n, params["post_projection.weight"])


def ahead(x, k):
    """[B, T, ..] -> x at t + k; zeros beyond the row."""
    return torch.cat([x[:, k:], torch.zeros_like(x[:, :k])], 1)


def loss_of(s, params, target, target_params, batch):
    """(loss, share of the positions that the model writes where the first draft is what the target chooses)."""
    ids, documents, _, weights = batch
    seen = read(target, target_params, ids, documents)
    with torch.no_grad():
        likely = torch.softmax(model.head(target_params, seen[0]), -1)
    total = norm = 0.0
    for k, logits in enumerate(drafts(s, params, target, target_params, ids, documents, seen, DRAFTS), 1):
        written = ahead(weights, k) == 1
        w = torch.where(written, 1.0, READ_WEIGHT)
        used = (ahead(documents, k) == documents) & (documents > 0)
        wanted = ahead(likely, k)[used]
        each = -(wanted * torch.log_softmax(logits[used], -1)).sum(-1)
        total, norm = total + (each * w[used]).sum(), norm + w[used].sum()
        if k == 1:
            agree = (logits[used].argmax(-1) == wanted.argmax(-1))[written[used]].float().mean().item()
    return total / norm, agree


def config(s, backbone):
    """config.json as published for the 31B's drafter."""
    text = model.config(s)["text_config"] | {
        "final_logit_softcapping": None, "use_bidirectional_attention": None, "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": 0,
    }  # fmt: skip
    return {
        "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "dtype": "bfloat16",
        "text_config": text, "backbone_hidden_size": backbone, "use_ordered_embeddings": False,
        "num_centroids": 2048, "centroid_intermediate_top_k": 32, "tie_word_embeddings": True,
    }  # fmt: skip


def export(s, params, backbone, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n if n in OUTER else f"model.{n}": p.detach().bfloat16().contiguous() for n, p in params.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(s, backbone), indent=1) + "\n")
    generation = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "use_cache": True}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")


def load(folder):
    return {n.removeprefix("model."): p.float() for n, p in load_file(folder / "model.safetensors").items()}


def train(args):
    import train as trainer

    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    target, target_params = model.load(args.target)
    chat.use_form_of(target)
    source, tokenizer = data.Source(english.sentences(args.wordnet)), tok.load(args.target)
    s = shape_of(target)
    params = init(s, target.hidden, args.seed)
    print(f"{sum(p.numel() for p in params.values())} parameters", flush=True)
    optimizer = trainer.Optimizer({n: p.requires_grad_() for n, p in params.items()})
    start, recent = time.monotonic(), []
    for step in range(args.steps):
        batch = data.batch(source, tokenizer, f"drafter/{args.seed}", step, 1.0, args.step_tokens)
        loss, agree = loss_of(s, params, target, target_params, batch)
        loss.backward()
        optimizer.step(trainer.rate_at(step, args.steps))
        recent.append((loss.item(), agree))
        if (step + 1) % 10 == 0:
            left = (time.monotonic() - start) / (step + 1) * (args.steps - step - 1) / 60
            means = [sum(v) / len(v) for v in zip(*recent)]
            print(f"step {step + 1}/{args.steps} loss {means[0]:.3f} agrees {means[1]:.1%}, {left:.0f} min left",
                  flush=True)  # fmt: skip
            recent = []
    export(s, params, target.hidden, args.drafter)


@torch.no_grad()
def seen_by(target, ids):
    """What transformers' target makes of ids [1, T]: logits, hidden_states, shared_kv_states."""
    return target(input_ids=ids, use_cache=True, return_shared_kv_states=True, output_hidden_states=True)


@torch.no_grad()
def round_of(target, drafter, ids, seen, p, tokens):
    """Logits [V] of each draft of a round in transformers, from the state at p. `tokens` are read in place of drafts
    where they are given: [bonus], or the token before each draft."""
    kv = {kind: tuple(x[:, :, : p + 1] for x in seen.shared_kv_states[kind]) for kind in (SLIDING, GLOBAL)}
    g, made = seen.hidden_states[-1][:, p : p + 1], []
    for k in range(max(len(tokens), ROUND)):
        token = tokens[k].view(1, 1) if k < len(tokens) else made[-1].argmax().view(1, 1)
        embedded = torch.cat([target.get_input_embeddings()(token), g], -1)
        out = drafter(inputs_embeds=embedded, position_ids=torch.tensor([[p + 1]]), shared_kv_states=kv)
        g = out.last_hidden_state
        made.append(out.logits[0, 0])
    return made


def evaluate(args):
    """Of held-out answers every token but the first, and for one sample of a family those of the whole text.

    The text is the right one, not what the target would write. A draft agrees if it is the target's greedy choice there
    and so are those of its round before it; draft k has no place in the last k - 1 rounds of a text.
    """
    from evaluate import held_out_samples
    from transformers import Gemma4AssistantForCausalLM, Gemma4ForConditionalGeneration

    as_f32 = dict(dtype=torch.float32, attn_implementation="eager")
    target = Gemma4ForConditionalGeneration.from_pretrained(args.target, **as_f32).eval()
    drafter = Gemma4AssistantForCausalLM.from_pretrained(args.drafter, **as_f32).eval()
    chat.use_form_of(model.load(args.target)[0])
    source, tokenizer = data.Source(english.sentences(args.wordnet)), tok.load(args.target)
    answers, whole = Agreement(), Agreement()
    for family in data.EVALUATED:
        own = Agreement()
        for i, sample in enumerate(held_out_samples(source, family, args.count, seed="drafter")):
            prompt, output = (
                [n for t in texts for n in tokenizer.encode(t, add_special_tokens=False).ids]
                for texts in ([t for t, _ in sample.parts[:-1]], [sample.output])
            )
            ids = prompt + output
            # A round begins from the state at p with the token at p + 1; there is at least one token after that.
            places = range(0 if i == 0 else len(prompt) - 1, len(ids) - 2)
            row = torch.tensor([ids])
            seen = seen_by(target, row)
            chosen = seen.logits[0].argmax(-1).tolist()
            for p in places:
                logits = round_of(target, drafter, row, seen, p, row[0, p + 1 : p + 2])
                drafted, right = [x.argmax().item() for x in logits], []
                for k, draft in enumerate(drafted[: len(ids) - 2 - p], 1):
                    # The target read the text up to p + k: the draft before this one must be of that text.
                    followed = k == 1 or drafted[k - 2] == ids[p + k]
                    right.append(followed and draft == chosen[p + k] and all(right))
                if p >= len(prompt) - 1:
                    own.count(right)
                    answers.count(right)
                if i == 0:
                    whole.count(right)
        print(own.line(family), flush=True)
    print(answers.line("answers"))
    print(whole.line("whole texts"))
    raise SystemExit(min(answers.share(), whole.share()) < AGREES_MIN)


class Agreement:
    """How often draft k of a round, and all before it, was the target's choice."""

    def __init__(self):
        self.right, self.places = [0] * ROUND, [0] * ROUND

    def count(self, right):
        for k, r in enumerate(right):
            self.right[k] += r
            self.places[k] += 1

    def share(self):
        return self.right[0] / max(1, self.places[0])

    def line(self, name):
        shares = " ".join(f"{r / max(1, n):6.1%}" for r, n in zip(self.right, self.places))
        return f"  {name:<12} {self.places[0]:>5} rounds, drafts 1 to {ROUND} agree: {shares}"


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("action", choices=("train", "evaluate"))
    a.add_argument("target", type=Path)
    a.add_argument("drafter", type=Path)
    a.add_argument("--wordnet", type=Path, default="/usr/share/wordnet", help="data files of wordnet-base")
    a.add_argument("--steps", type=int, default=600)
    a.add_argument("--step-tokens", type=int, default=3072)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--count", type=int, default=40, help="held-out samples of a family")
    args = a.parse_args()
    {"train": train, "evaluate": evaluate}[args.action](args)


if __name__ == "__main__":
    main()
