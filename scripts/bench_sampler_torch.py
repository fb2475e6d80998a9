#!/usr/bin/env python3
"""PyTorch's sampling beside our sampler kernels, at the vocabulary of Gemma 4.

    scripts/bench_sampler_torch.py --json sampler.json [--ours kernel_bench.json] [--rows 1,8,64,128]

What is timed is what servers do in PyTorch with every row's own parameters in tensors: `greedy` is argmax; `top-k 64
top-p 0.95` sorts the row, masks below the k-th logit, takes softmax and cumulative sum, masks the tail, and draws by
exponential noise and argmax. Logits are f32 [rows, 262144], near to normal with deviation 3, as in kernel_bench. Each
is one CUDA graph of several draws, replayed, timed by events; medians. `floor` is the time of one read of the logits at
the bandwidth of a device-to-device copy in the same run. --ours adds the sum of sample_groups and sample_rows of the
same case, from the JSON of kernel_bench. Where there is no CUDA nothing is captured: a rehearsal, not a measurement.
"""

import argparse
import json
import statistics
import time

import torch

VOCAB = 262144
CASES = ("greedy", "top-k 64 top-p 0.95")
DRAWS, REPLAYS = 8, 30


def greedy(logits, k, p):
    return logits.argmax(-1)


def top_k_top_p(logits, k, p):
    ordered, index = logits.sort(-1, descending=True)
    least = ordered.gather(-1, (k - 1)[:, None])
    ordered = ordered.masked_fill(ordered < least, -torch.inf)
    probability = ordered.softmax(-1)
    # A token stays while the mass before it is below p.
    probability = probability.masked_fill(probability.cumsum(-1) - probability >= p[:, None], 0)
    noise = torch.empty_like(probability).exponential_()
    return index.gather(-1, (probability / noise).argmax(-1, keepdim=True))[:, 0]


def microseconds(draw, device):
    """Median time of one call, in a graph of DRAWS calls."""
    if device.type != "cuda":
        start = time.perf_counter()
        draw()
        return (time.perf_counter() - start) * 1e6
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        draw()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(DRAWS):
            draw()
    times = []
    for _ in range(REPLAYS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / DRAWS)
    return statistics.median(times[3:])


def ours(cases, case, rows):
    """Microseconds of both kernels, of the first model in the list; none where a case is missing."""
    found = []
    for kernel in ("sample_groups", "sample_rows"):
        end = f"{kernel} {case} {rows} rows"
        found.append(next((c["us"] for c in cases if c["case"].endswith(end)), None))
    return None if None in found else sum(found)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--json", required=True)
    a.add_argument("--ours", help="JSON of kernel_bench")
    a.add_argument("--rows", type=lambda t: [int(n) for n in t.split(",")], default=[1, 8, 64, 128])
    args = a.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    a_copy = torch.empty(2**30 if device.type == "cuda" else 2**24, dtype=torch.uint8, device=device)
    target = torch.empty_like(a_copy)
    bytes_per_us = 2 * a_copy.numel() / microseconds(lambda: target.copy_(a_copy), device)
    cases = json.load(open(args.ours)) if args.ours else []
    report = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
              "copy_gb_per_s": bytes_per_us / 1e3, "points": []}  # fmt: skip
    print(f"{'case':<22} {'rows':>4} {'floor us':>9} {'torch us':>9} {'ours us':>9} {'torch/ours':>10}")
    for case, draw in zip(CASES, (greedy, top_k_top_p)):
        for rows in args.rows:
            logits = torch.randn(rows, VOCAB, device=device) * 3
            k = torch.full((rows,), 64, device=device)
            p = torch.full((rows,), 0.95, device=device)
            floor = rows * VOCAB * 4 / bytes_per_us
            us, mine = microseconds(lambda: draw(logits, k, p), device), ours(cases, case, rows)
            report["points"].append({"case": case, "rows": rows, "floor_us": floor, "torch_us": us, "ours_us": mine})
            own, ratio = (f"{mine:9.1f}", f"{us / mine:10.1f}") if mine else (f"{'-':>9}", f"{'-':>10}")
            print(f"{case:<22} {rows:>4} {floor:9.1f} {us:9.1f} {own} {ratio}", flush=True)
    with open(args.json, "w") as out:
        json.dump(report, out, indent=1)
    print(f"numbers: {len(report['points'])} points, torch {torch.__version__} on {report['device']}")


if __name__ == "__main__":
    main()
