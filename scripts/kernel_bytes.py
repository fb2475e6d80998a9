#!/usr/bin/env python3
"""Bytes each kernel moves in a decode step of each published size, and the time they take at 4.3 TB/s.

usage: kernel_bytes.py [--check | --write]     prints the tables; compares them with csrc/README.md, or puts them there

Computed from the published shapes and from what each kernel's header says it reads and writes. 4.3 TB/s is what a copy
reaches on an H200 (bench/results). Weights are read once a step whatever the rows, but those of experts: of them as
many as rows that choose evenly and each for itself go to. Partial sums of attention are written and read once, though
some of that stays in L2.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "csrc/README.md"
BEGIN, END = "<!-- kernel_bytes.py -->", "<!-- end of kernel_bytes.py -->"
BYTES_PER_SECOND = 4.3e12
VOCAB = 262144
GROUP = 256
CONTEXT = 8192
ROWS = (1, 64)
# Keys of an attention segment, as served: {"sliding": ..., "global": ...}.
SEGMENT = {kind: int(n) for kind, n in re.findall(r"segment_(\w+): (\d+),", (ROOT / "src/model/plan.rs").read_text())}


@dataclass
class Model:
    name: str
    hidden: int
    layers: int
    every: int  # of `every` layers the last is global
    heads: int
    kv_sliding: int
    kv_global: int
    intermediate: int
    window: int
    experts: int = 0
    top: int = 0  # experts of a token
    expert_width: int = 0
    shared: int = 0  # layers at the end that read another's K and V
    shared_intermediate: int = 0  # width of their MLP
    per_layer: int = 0  # width of the per-layer embeddings; these models have a V of their own in global layers


MODELS = [
    Model("E2B", 1536, 35, 5, 8, 1, 1, 6144, 512, shared=20, shared_intermediate=12288, per_layer=256),
    Model("E4B", 2560, 42, 6, 8, 2, 2, 10240, 512, shared=18, shared_intermediate=10240, per_layer=256),
    Model("12B", 3840, 48, 6, 16, 8, 1, 15360, 1024),
    Model("26B-A4B", 2816, 30, 6, 16, 8, 2, 2112, 1024, 128, 8, 704),
    Model("31B", 5376, 60, 6, 32, 16, 4, 21504, 1024),
]


def product(rows, n, k):
    """A weight of [n, k], read once, with its inputs and outputs in bf16."""
    return 2 * n * k + rows * (2 * k + 2 * n)


def experts(read, pairs, n, k):
    """The same, each of the experts that are read once."""
    return read * 2 * n * k + pairs * (2 * k + 2 * n)


def step(m, rows):
    """Kernel -> bytes of one decode step of `rows` sequences at CONTEXT tokens each."""
    h = m.hidden
    moved = dict.fromkeys(
        ["embed", "rmsnorm", "gemm: q k v", "gemm: o", "gemm: gate up", "gemm: down", "qkv_prep",
         "attn_decode: sliding", "attn_decode: global", "attn_decode_fold", "add_norm", "gelu_gate", "per_layer_input",
         "gemm: per layer", "expert_input", "logits: router",
         "expert_route", "expert_group", "expert_gemm: gate up", "expert_gemm: down", "expert_combine", "logits",
         "sample_groups", "sample_rows"], 0)  # fmt: skip
    # A gathered row of the packed table comes with three others of its fragments.
    moved["embed"] = rows * (8 * h + 2 * h)
    moved["rmsnorm"] = rows * 4 * h
    if m.per_layer:
        moved["per_layer_input"] = rows * 6 * m.layers * m.per_layer
        moved["gemm: per layer"] = product(rows, m.layers * m.per_layer, h)
    for i in range(m.layers):
        is_global = i % m.every == m.every - 1
        dim, kv, seen = (512, m.kv_global, CONTEXT) if is_global else (256, m.kv_sliding, min(CONTEXT, m.window))
        is_shared = i >= m.layers - m.shared
        # V of a global layer is its K: the product makes one of them, the cache keeps both.
        kv_parts = 0 if is_shared else 1 if is_global and not m.per_layer else 2
        moved["gemm: q k v"] += product(rows, (m.heads + kv * kv_parts) * dim, h)
        moved["qkv_prep"] += rows * 2 * dim * (2 * m.heads + (0 if is_shared else 4 * kv))
        kind = "global" if is_global else "sliding"
        # Of several segments (in a window one more where it does not end with a segment, as here) each writes its sums,
        # which a fold reads: of global layers, whose segments grow with the context, a kernel of its own.
        segments = (CONTEXT - 1) // SEGMENT[kind] - (CONTEXT - seen) // SEGMENT[kind] + 1
        partials = segments * m.heads * (4 * dim + 8) if segments > 1 else 0
        fold = "attn_decode_fold" if is_global else f"attn_decode: {kind}"
        moved[f"attn_decode: {kind}"] += rows * (4 * dim * kv * seen + 2 * dim * m.heads + partials)
        moved[fold] += rows * (partials + 2 * dim * m.heads)
        moved["gemm: o"] += product(rows, h, m.heads * dim)
        intermediate = m.shared_intermediate if is_shared else m.intermediate
        moved["gemm: gate up"] += product(rows, 2 * intermediate, h)
        moved["gelu_gate"] += rows * 6 * intermediate
        moved["gemm: down"] += product(rows, h, intermediate)
        moved["add_norm"] += 2 * rows * 8 * h
        if m.per_layer:
            moved["gemm: per layer"] += product(rows, m.per_layer, h) + product(rows, h, m.per_layer)
            moved["gelu_gate"] += rows * 6 * m.per_layer
            moved["add_norm"] += rows * 6 * h  # without a next norm
        if m.experts:
            pairs = rows * m.top
            read = m.experts * (1 - (1 - m.top / m.experts) ** rows)
            moved["expert_input"] += rows * 6 * h
            moved["logits: router"] += 2 * m.experts * h + rows * (2 * h + 4 * m.experts)
            moved["expert_route"] += rows * 4 * m.experts + pairs * 8
            moved["expert_group"] += pairs * 12 + read * 12
            moved["expert_gemm: gate up"] += experts(read, pairs, 2 * m.expert_width, h)
            moved["gelu_gate"] += pairs * 6 * m.expert_width
            moved["expert_gemm: down"] += experts(read, pairs, h, m.expert_width)
            moved["expert_combine"] += rows * 2 * h * (m.top + 2)
    moved["logits"] = 2 * VOCAB * h + rows * (2 * h + 4 * VOCAB)
    moved["sample_groups"] = rows * 4 * VOCAB
    # Greedy: the groups' maxima, and the one group of the greatest.
    moved["sample_rows"] = rows * (8 * VOCAB // GROUP + 4 * GROUP)
    return moved


def text():
    out = [
        f"Bytes of one decode step at {CONTEXT:,} tokens of context, all layers together, and the time they take at "
        f"{BYTES_PER_SECOND / 1e12} TB/s",
        "(`scripts/kernel_bytes.py`). `scatter`, `step_begin` and `tail` move a few hundred bytes.",
    ]
    for rows in ROWS:
        steps = [step(m, rows) for m in MODELS]
        out += ["", f"| {rows} row{'s' if rows > 1 else ''} | " + " | ".join(m.name for m in MODELS) + " |"]
        out.append("|---|" + "---:|" * len(MODELS))
        out += [f"| {kernel} | " + " | ".join(cell(s[kernel]) for s in steps) + " |" for kernel in steps[0]]
        out.append("| **a step** | " + " | ".join(cell(sum(s.values())) for s in steps) + " |")
    return "\n".join(out)


def cell(moved):
    if not moved:
        return "-"
    us = moved / BYTES_PER_SECOND * 1e6
    scale, unit = next((s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if moved >= s)
    size = f"{moved / scale:.{1 if unit == 'kB' else 2}f} {unit}"
    return f"{size}, {us:,.0f} us" if us >= 10 else f"{size}, {us:.2g} us"


def main():
    readme = README.read_text()
    before, _, rest = readme.partition(BEGIN)
    inside, _, after = rest.partition(END)
    if "--write" in sys.argv:
        README.write_text(f"{before}{BEGIN}\n{text()}\n{END}{after}")
    elif "--check" in sys.argv:
        if inside.strip() != text().strip():
            print("csrc/README.md is not what scripts/kernel_bytes.py --write makes of it")
            return 1
        print("csrc/README.md lists the bytes of every kernel and size")
    else:
        print(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
