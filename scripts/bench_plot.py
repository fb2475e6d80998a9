#!/usr/bin/env python3
"""A picture of `gemma4-serve bench --json`: scripts/bench_plot.py bench.json out.png [--torch torch.json]

Left: milliseconds of a decode step over rows, a line a context, bars from the fastest to the slowest round; with
--torch the figures of scripts/bench_torch.py beside them, dashed. Right: the share of the copy bandwidth that each
step reached. Needs matplotlib.
"""

import argparse
import json

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("out")
    parser.add_argument("--torch")
    args = parser.parse_args()
    ours = json.load(open(args.bench))
    figure, (time, share) = plt.subplots(1, 2, figsize=(12, 4.5))
    lines(time, share, ours["decode"], lambda p: f"context {p['context']}", "-")
    if args.torch:
        theirs = json.load(open(args.torch))
        lines(time, share, theirs["decode"], lambda p: f"transformers, {p['mode']}, context {p['context']}", "--")
    for axes in (time, share):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("rows")
        axes.grid(alpha=0.3)
        ticks = sorted({p["rows"] for p in ours["decode"]})
        axes.set_xticks(ticks, [str(rows) for rows in ticks])
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    time.set_ylabel("milliseconds a step, on the device")
    copy = ours["copies"]["bytes_per_second"]["median"] / 1e9
    share.set_ylabel(f"% of the copy bandwidth ({copy:.0f} GB/s)")
    time.legend(fontsize=8)
    model, device = ours["model"], ours["device"]
    figure.suptitle(f"{model['name']}, {model['layers']} layers, on {device['name']}: median of "
                    f"{ours['settings']['rounds']} rounds, bars are the range")
    figure.tight_layout()
    figure.savefig(args.out, dpi=120)


def lines(time, share, points, name, style):
    groups = {}
    for point in points:
        if point.get("left_out") is None:
            groups.setdefault(name(point), []).append(point)
    for label, group in groups.items():
        group.sort(key=lambda p: p["rows"])
        rows, spreads = [p["rows"] for p in group], [p["step_ms"] for p in group]
        middle = [s["median"] for s in spreads]
        bars = [[s["median"] - s["min"] for s in spreads], [s["max"] - s["median"] for s in spreads]]
        drawn = time.errorbar(rows, middle, bars, label=label, linestyle=style, marker="o", capsize=3)
        color = drawn.lines[0].get_color()
        share.plot(rows, [100 * p["share_of_copy"] for p in group], linestyle=style, marker="o", color=color)


if __name__ == "__main__":
    main()
