"""Scores of a checkpoint on held-out items: python evaluate.py FOLDER [--count N].

An answer counts if greedy decoding would give exactly it: if, with the right output fed in, the largest logit at each
of its positions is the next token of it (the first wrong one is where greedy decoding would leave it). That is one
forward pass a sample instead of one a token. A right answer after a different thought counts as wrong here; the
evaluation against the server, which decodes, is the one that is published.
"""

import argparse
import random
import statistics
from pathlib import Path

import torch

import chat
import data
import english
import model
import tokenizer as tok

ROWS = 16


def held_out_samples(source, family, count, seed="evaluation"):
    """`count` samples whose items were never trained on, all different."""
    rng = random.Random(f"{seed}/{family}")
    found = {}
    for _ in range(50 * count):
        if len(found) == count:
            break
        # A fact whose filler alone is longer than the window: only global layers can see it.
        sample = source.sample(rng, family, out=True, filler=rng.randint(70, 180) if family == "far_fact" else None)
        found.setdefault(sample.prompt, sample)
    return list(found.values())


@torch.no_grad()
def judge(shape, params, tokenizer, samples):
    """[(all right, smallest step of a right answer's two largest logits, all gaps)] in the order of the samples."""
    encoded = []
    for s in samples:
        prompt = [i for t, _ in s.parts[:-1] for i in tokenizer.encode(t, add_special_tokens=False).ids]
        encoded.append((prompt, tokenizer.encode(s.output, add_special_tokens=False).ids))
    order = sorted(range(len(samples)), key=lambda i: len(encoded[i][0]) + len(encoded[i][1]))
    results = [None] * len(samples)
    for at in range(0, len(order), ROWS):
        some = order[at : at + ROWS]
        longest = max(len(encoded[i][0]) + len(encoded[i][1]) for i in some)
        t = -(-longest // shape.window) * shape.window
        rows = [([encoded[i][0] + encoded[i][1]], [[0.0] * len(encoded[i][0]) + [1.0] * len(encoded[i][1])])
                for i in some]  # fmt: skip
        ids, documents, targets, weights = data.pack(rows, t)
        n = model.states(shape, params, ids, model.masks(shape, documents))
        for row, i in enumerate(some):
            used = weights[row] > 0
            top = model.head(params, n[row][used]).topk(2, -1)
            right = bool((top.indices[:, 0] == targets[row][used]).all())
            results[i] = (right, (top.values[:, 0] - top.values[:, 1]).tolist())
    return results


def scores(shape, params, source, tokenizer, count):
    """family -> (right, samples, gaps between the two largest logits)."""
    out = {}
    for family in data.EVALUATED:
        samples = held_out_samples(source, family, count)
        results = judge(shape, params, tokenizer, samples)
        out[family] = (sum(r for r, _ in results), len(samples), [g for _, gaps in results for g in gaps])
    return out


def table(found):
    right, total = (sum(v[i] for v in found.values()) for i in (0, 1))
    gaps = [g for v in found.values() for g in v[2]]
    lines = [f"  {f:<12} {r:>4} of {n:<4} {100 * r / n:5.1f} %" for f, (r, n, _) in found.items()]
    lines.append(f"  all          {right:>4} of {total:<4} {100 * right / total:5.1f} %")
    return "\n".join(lines + [f"  median gap of the two largest logits: {statistics.median(gaps):.2f}"])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("folder", type=Path)
    a.add_argument("--count", type=int, default=100, help="samples of a family")
    a.add_argument("--wordnet", type=Path, default="/usr/share/wordnet")
    a.add_argument("--wrong", type=int, default=0, help="show this many wrong samples of a family")
    args = a.parse_args()
    shape, params = model.load(args.folder)
    chat.use_form_of(shape)
    source = data.Source(english.sentences(args.wordnet))
    tokenizer = tok.load(args.folder)
    print(table(scores(shape, params, source, tokenizer, args.count)))
    for family in data.EVALUATED if args.wrong else ():
        samples = held_out_samples(source, family, args.count)
        results = judge(shape, params, tokenizer, samples)
        for s in [s for s, r in zip(samples, results) if not r[0]][: args.wrong]:
            print(f"{family}: {s.prompt!r} -> {s.output!r}")


if __name__ == "__main__":
    main()
