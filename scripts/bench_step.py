#!/usr/bin/env python3
"""What a decode step costs the engine thread, in instructions: bench_step.py record|check BINARY

Runs `BINARY bench-step` under callgrind and natively. Instructions are those of the engine thread inside
`Engine::step`, of the program's own object: those of the software driver, which is no GPU's, stand in a column of
their own. Kernels are switched off, so a count is the same on every machine with the same compiler and build: that
which scripts/gates.sh makes for this gate.

record FOLDER BINARY   measures every switch and writes FOLDER/step_cost.json and FOLDER/step_cost.md
check FILE BINARY      measures the points that FILE (a step_cost.json) marks as checked, and holds them against it:
                       within 2 %; no allocation, no upload, two graphs, one readback, one wait a regular step; the
                       cost of a row and of context within bounds. Ends with "step_cost: N passed, M failed".
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

STEP = "gemma4_serve::engine::Engine::step"
WARMED = "gemma4_serve::bench_step::warmed"
MEASURED = "gemma4_serve::bench_step::measured"
SWITCHES = ["", "--no-graphs", "--no-pipeline", "--no-fingerprint", "--no-tail"]
ROWS = [1, 8, 32, 128]
CONTEXTS = [100, 10_000, 100_000]
STEPS = 64
NATIVE_STEPS = 2000
# Bounds of a regular step in the profile that is checked.
PER_ROW_MAX = 40
CONTEXT_GROWTH_MAX = 0.005
TOLERANCE = 0.02


def instructions(binary, rows, contexts, switch):
    """{(rows, context): (own, elsewhere)} a step, from one process under callgrind."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind",
            "--tool=callgrind",
            "--separate-threads=yes",
            "--collect-atstart=no",
            f"--toggle-collect={STEP}",
            f"--dump-after={WARMED}",
            f"--dump-after={MEASURED}",
            f"--callgrind-out-file={folder}/cg",
            *bench(binary, rows, contexts, switch, STEPS),
        ]
        run(command)
        # Two parts of thread 1 a point: what came before its measured steps, and those.
        points = [(r, c) for r in rows for c in contexts]
        found = {}
        for part, point in enumerate(points, 1):
            by_object = self_cost(pathlib.Path(f"{folder}/cg.{2 * part}-01").read_text())
            own = sum(cost for name, cost in by_object.items() if name == str(binary))
            everything = sum(by_object.values())
            if not own:
                sys.exit(f"{point}: no instruction of {binary} was counted; objects: {by_object}")
            found[point] = (own / STEPS, (everything - own) / STEPS)
        return found


def self_cost(text):
    """Instructions by object: lines of cost, without those that repeat a call's inclusive cost."""
    names, by_object, current, is_call = {}, {}, "", False
    for line in text.splitlines():
        if line.startswith("ob="):
            number, name = re.match(r"ob=\((\d+)\)(?: (.*))?", line).groups()
            current = names.setdefault(number, name)
        elif line.startswith("cob="):
            number, name = re.match(r"cob=\((\d+)\)(?: (.*))?", line).groups()
            names.setdefault(number, name)
        elif line.startswith("calls="):
            is_call = True
        elif re.match(r"[+\-*\d]", line):
            if not is_call:
                by_object[current] = by_object.get(current, 0) + int(line.split()[1])
            is_call = False
    return by_object


def bench(binary, rows, contexts, switch, steps):
    joined = [",".join(map(str, numbers)) for numbers in (rows, contexts)]
    flags = switch.split() if switch else []
    return [str(binary), "bench-step", "--rows", joined[0], "--context", joined[1], "--steps", str(steps), *flags]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def native(binary, rows, contexts, switch, steps=NATIVE_STEPS):
    lines = run(bench(binary, rows, contexts, switch, steps)).splitlines()
    return {(point["rows"], point["context"]): point for point in map(json.loads, lines)}


def compiler():
    return run(["rustc", "--version"]).strip()


def record(folder, binary):
    folder.mkdir(parents=True, exist_ok=True)
    points = []
    for switch in SWITCHES:
        print(f"{switch or 'as shipped'} ...", flush=True)
        counted = instructions(binary, ROWS, CONTEXTS, switch)
        timed = native(binary, ROWS, CONTEXTS, switch)
        for (rows, context), (own, elsewhere) in counted.items():
            point = timed[rows, context]
            per_step = {name: point[name] / NATIVE_STEPS for name in COUNTS}
            cost = {"instructions": round(own, 1), "instructions_driver": round(elsewhere)}
            where = {"switch": switch, "rows": rows, "context": context}
            points.append({**where, **cost, "wall_ns": point["wall_ns_median"], **per_step})
    spun = native(binary, ROWS, CONTEXTS[:1], "--spin-us 50")
    spins = [{"rows": rows, "wall_ns": point["wall_ns_median"]} for (rows, _), point in spun.items()]
    is_debug = "debug" in str(binary)
    profile = "dev" if is_debug else "release"
    table = {"compiler": compiler(), "profile": profile, "steps": STEPS, "points": points, "spin_50_us": spins}
    name = "step_cost" if is_debug else "step_cost_release"
    (folder / f"{name}.json").write_text(json.dumps(table, indent=1) + "\n")
    (folder / f"{name}.md").write_text(page(table))


COUNTS = ["heap_allocations", "h2d_copies", "h2d_bytes", "d2h_copies"]
COUNTS += ["graph_launches", "kernel_launches", "host_waits"]


def page(table):
    lines = f"""# What a decode step costs the engine thread

`scripts/bench_step.py record`, {table['compiler']}, profile `{table['profile']}`, software device with its kernels
switched off, two sliding layers. Instructions a step inside `Engine::step` on the engine thread: the program's own,
and those of what it calls (the software driver, the C library). Nanoseconds are the median of wall time and include
the wait for the software device's stream thread. The other columns are counts a step.

| switch | rows | context | instructions | callees' | ns | heap | h2d | bytes | d2h | graphs | kernels | waits |
|---|---|---|---|---|---|---|---|---|---|---|---|---|""".splitlines()
    for p in table["points"]:
        counts = " | ".join(f"{p[name]:g}" for name in COUNTS)
        cost = f"{p['instructions']:.0f} | {p['instructions_driver']} | {p['wall_ns']}"
        lines.append(f"| {p['switch'] or 'as shipped'} | {p['rows']} | {p['context']} | {cost} | {counts} |")
    spin = "With `--spin-us 50`, the default on a GPU (the table is with 0, as on the software device), context 100:"
    lines += ["", spin, "", "| rows | ns |", "|---|---|"]
    lines += [f"| {p['rows']} | {p['wall_ns']} |" for p in table["spin_50_us"]]
    return "\n".join(lines) + "\n"


class Facts:
    def __init__(self):
        self.passed = self.failed = 0

    def fact(self, holds, text):
        self.passed += bool(holds)
        self.failed += not holds
        print("ok  " if holds else "FAIL", text, flush=True)


# Points of the check: every width at two contexts as shipped, one width for each switch.
CHECKED_CONTEXTS = [100, 10_000]


def check(file, binary):
    table = json.loads(file.read_text())
    recorded = {(p["switch"], p["rows"], p["context"]): p for p in table["points"]}
    facts = Facts()
    print(f"recorded with {table['compiler']}, here {compiler()}")
    regular = {}
    for switch in SWITCHES:
        rows, contexts = (ROWS, CHECKED_CONTEXTS) if not switch else ([8], [100])
        counted = instructions(binary, rows, contexts, switch)
        if not switch:
            regular = {point: own for point, (own, _) in counted.items()}
        for (r, c), (own, _) in counted.items():
            before = recorded[switch, r, c]["instructions"]
            off = own / before - 1
            point = f"{switch or 'as shipped'}, {r} rows, context {c}"
            facts.fact(abs(off) <= TOLERANCE, f"{point}: {own:.0f} instructions, {before:.0f} recorded ({off:+.2%})")
    for context in CHECKED_CONTEXTS:
        slope = (regular[128, context] - regular[1, context]) / 127
        facts.fact(slope <= PER_ROW_MAX, f"context {context}: a row costs {slope:.1f} instructions, of {PER_ROW_MAX}")
    for rows in ROWS:
        low, high = (regular[rows, context] for context in CHECKED_CONTEXTS)
        facts.fact(abs(high / low - 1) <= CONTEXT_GROWTH_MAX,
                   f"{rows} rows: {low:.0f} instructions at context 100, {high:.0f} at 10000")
    expected = {"heap_allocations": 0, "h2d_copies": 0, "h2d_bytes": 0, "d2h_copies": 1, "graph_launches": 2,
                "kernel_launches": 0, "host_waits": 1}
    for (rows, context), point in native(binary, ROWS, CHECKED_CONTEXTS, "", 200).items():
        counts = {name: point[name] / point["steps"] for name in COUNTS}
        facts.fact(counts == expected, f"{rows} rows, context {context}: {counts} a step")
    print(f"step_cost: {facts.passed} passed, {facts.failed} failed")
    sys.exit(facts.failed > 0)


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("record", "check"):
        sys.exit(__doc__)
    if not shutil.which("valgrind"):
        print("skipped: valgrind is not here")
        print("step_cost: 0 passed, 0 failed")
        sys.exit(sys.argv[1] != "check")
    work = {"record": record, "check": check}[sys.argv[1]]
    work(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]).resolve())


if __name__ == "__main__":
    main()
