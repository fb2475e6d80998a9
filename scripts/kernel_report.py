#!/usr/bin/env python3
"""Compiles every kernel for the given architectures and judges what came out: see kernel_report.sh."""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "target" / "kernel-report"
# Kernels whose time is the reading of packed weights: a 16-byte load is a lane's whole A fragment.
STREAMS_WEIGHTS = re.compile(r"g4_(expert_)?(gemm|logits)_")
WIDE_LOAD = re.compile(r"\b(LDG|LDGSTS)\.[A-Z0-9.]*\b128\b")
PRODUCT = re.compile(r"\b(HMMA|HGMMA|UTCHMMA)\b")
# Of a multiprocessor (CUDA C++ Programming Guide, compute capabilities): threads; registers are 65,536 on each.
THREADS_MAX = {"80": 2048, "90a": 2048, "100": 2048, "120": 1536}
REGISTERS, REGISTER_UNIT = 65536, 256


@dataclass
class Built:
    """One kernel on one architecture."""

    kernel: str
    arch: str
    registers: int = 0
    shared: int = 0
    stack: int = 0
    spills: int = 0
    wide_loads: int = 0
    products: int = 0
    faults: list = field(default_factory=list)


def tool(name):
    home = os.environ.get("CUDA_HOME")
    if home and (Path(home) / "bin" / name).is_file():
        return str(Path(home) / "bin" / name)
    found = shutil.which(name)
    if not found:
        sys.exit(f"{name} is neither in $CUDA_HOME/bin nor in $PATH")
    return found


def flags_of_the_build():
    """The flags of build.rs: what is judged is what ships."""
    text = (ROOT / "build.rs").read_text()
    listed = re.search(r"const NVCC_FLAGS: [^=]*= \[(.*?)\];", text, re.S)
    if not listed:
        sys.exit("build.rs has no NVCC_FLAGS")
    return re.findall(r'"([^"]+)"', listed.group(1))


def parse_ptxas(text, arch):
    """Reads `ptxas -v`: one Built a kernel."""
    built = {}
    current = None
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            current = built.setdefault(match.group(1), Built(match.group(1), arch))
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            # Also printed for functions that were not inlined; those count against the kernel they follow.
            if current:
                current.stack = max(current.stack, int(match.group(1)))
                current.spills += int(match.group(2)) + int(match.group(3))
        elif current and (match := re.search(r"Used (\d+) registers", line)):
            current.registers = int(match.group(1))
            shared = re.search(r"(\d+) bytes smem", line)
            current.shared = int(shared.group(1)) if shared else 0
    return list(built.values())


def parse_sass(text):
    """Machine code by kernel."""
    parts = re.split(r"^\s*Function : (\w+)\s*$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def threads_of_a_block():
    """Kernel -> threads, from the name table."""
    header = (ROOT / "csrc" / "gemma4_kernels.h").read_text()
    return {name: int(threads) for name, threads in re.findall(r"X\((g4_\w+), \w+, (\d+)\)", header)}


def occupancy(registers, threads, arch):
    """Percent of a multiprocessor's threads that fit by registers; dynamic shared memory may allow fewer."""
    most = THREADS_MAX.get(arch)
    if not most or not threads or not registers:
        return None
    a_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    # Warps are dealt to four schedulers, each with a quarter of the registers.
    warps = 4 * (REGISTERS // 4 // a_warp)
    blocks = min(warps // (threads // 32), most // threads)
    return 100 * blocks * threads // most


def judge(built, sass):
    """Counts in the machine code, and every reason why one kernel must not ship."""
    code = sass.get(built.kernel, "")
    built.wide_loads, built.products = len(WIDE_LOAD.findall(code)), len(PRODUCT.findall(code))
    if built.spills:
        built.faults.append(f"{built.spills} bytes of spills")
    if built.stack:
        built.faults.append(f"{built.stack} bytes of stack")
    if not built.registers:
        built.faults.append("ptxas says nothing of it")
    if STREAMS_WEIGHTS.match(built.kernel):
        if not built.wide_loads:
            built.faults.append("no 16-byte global load")
        if not built.products:
            built.faults.append("no tensor-core product")


def compile_kernel(source, arch, flags):
    target = OUT / f"{source.stem}.sm_{arch}.cubin"
    command = [tool("nvcc"), *flags, "-Xptxas", "-v", "-cubin", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    ran = subprocess.run([*command, str(source), "-o", str(target)], capture_output=True, text=True)
    said = ran.stdout + ran.stderr
    if ran.returncode:
        return [Built(source.stem, arch, faults=[f"does not compile:\n{said}"])]
    kernels = parse_ptxas(said, arch)
    dump = subprocess.run([tool("cuobjdump"), "-sass", str(target)], capture_output=True, text=True, check=True)
    sass = parse_sass(dump.stdout)
    for kernel in kernels:
        judge(kernel, sass)
    warnings = [line for line in said.splitlines() if "warning" in line.lower()]
    if warnings or not kernels:
        kernels.append(Built(f"({source.name})", arch, faults=warnings or ["no kernel in this file"]))
    return kernels


def self_test():
    """Planted outputs of the tools: each must be faulted, and a clean one not."""
    def verdict(stack, spill, code):
        text = (
            "ptxas info    : Compiling entry function 'g4_gemm_t1' for 'sm_90a'\n"
            f"    {stack} bytes stack frame, {spill} bytes spill stores, 0 bytes spill loads\n"
            "ptxas info    : Used 107 registers, used 1 barriers, 16 bytes smem\n"
        )
        (built,) = parse_ptxas(text, "90a")
        judge(built, parse_sass(f"\t\tFunction : g4_gemm_t1\n{code}\n"))
        return built

    good = "LDG.E.128.CONSTANT R1, [R2] ;\n HMMA.16816.F32.BF16 R1 ;"
    clean = verdict(0, 0, good)
    assert not clean.faults and (clean.registers, clean.shared) == (107, 16), clean
    assert (clean.wide_loads, clean.products) == (1, 1), clean
    # 107 registers are 3,584 a warp: four warps a scheduler, two blocks of 256.
    assert [occupancy(r, 256, "90a") for r in (107, 32, 255)] == [25, 100, 12], occupancy(107, 256, "90a")
    narrow, scalar = good.replace("128", "64"), good.replace("HMMA", "FFMA")
    for planted in ((8, 0, good), (0, 4, good), (0, 0, narrow), (0, 0, scalar)):
        assert len(verdict(*planted).faults) == 1, planted


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("archs", nargs="+")
    arguments = parser.parse_args()
    self_test()
    OUT.mkdir(parents=True, exist_ok=True)
    flags = flags_of_the_build()
    sources = sorted((ROOT / "csrc" / "kernels").glob("*.cu"))
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [pool.submit(compile_kernel, s, a, flags) for s in sources for a in arguments.archs]
        built = [kernel for job in jobs for kernel in job.result()]

    table = {}
    for kernel in built:
        table.setdefault(kernel.kernel, {})[kernel.arch] = kernel
    threads = threads_of_a_block()
    print("flags " + " ".join(flags))
    print("registers (static shared bytes), % of the threads that fit by registers, 16-byte global loads, products")
    print(f"{'kernel':<28}" + "".join(f"{'sm_' + arch:>22}" for arch in arguments.archs))
    for name, by_arch in table.items():
        cells = []
        for arch in arguments.archs:
            k = by_arch.get(arch)
            if not k or not k.registers:
                cells.append("-")
                continue
            share = occupancy(k.registers, threads.get(name), arch)
            registers = f"{k.registers}" + (f"({k.shared})" if k.shared else "")
            cells.append(f"{registers:>7} {'?' if share is None else share:>3} % {k.wide_loads:>3} {k.products:>3}")
        print(f"{name:<28}" + "".join(f"{cell:>22}" for cell in cells))
    faulted = [k for k in built if k.faults]
    for kernel in faulted:
        for fault in kernel.faults:
            print(f"FAIL {kernel.kernel} sm_{kernel.arch}: {fault}")
    missing = [n for n, by_arch in table.items() if len(by_arch) != len(arguments.archs) and not n.startswith("(")]
    for name in missing:
        print(f"FAIL {name}: not on every architecture")
    failed = len(faulted) + len(missing)
    print(f"kernel report: {len(built) - len(faulted)} passed, {failed} failed")
    return 1 if failed or not built else 0


if __name__ == "__main__":
    sys.exit(main())
