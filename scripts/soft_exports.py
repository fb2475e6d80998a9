#!/usr/bin/env python3
"""Writes csrc/soft/exports.inc from cudarc's bindings: soft_exports.py path/to/cudarc/src/driver/sys/mod.rs"""
import re
import sys
from pathlib import Path

FEATURE = "cuda-13000"
lines = Path(sys.argv[1]).read_text().split("\n")
names = set()
for before, line in zip(lines, lines[1:]):
    match = re.match(r"pub unsafe fn (cu\w+)\(.*\) -> CUresult", line)
    if match and (not before.startswith("#[cfg(") or FEATURE in before):
        names.add(match.group(1))
out = Path(__file__).resolve().parent.parent / "csrc" / "soft" / "exports.inc"
out.write_text(
    f"// Every driver function that cudarc 0.19.10 binds with feature {FEATURE}.\n"
    "// Made by scripts/soft_exports.py; exports.cpp gives each a weak body that returns 801.\n"
    + "".join(f"X({name})\n" for name in sorted(names))
)
print(f"{len(names)} names")
