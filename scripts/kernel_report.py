#!/usr/bin/env python3
"""Compiles every kernel for the given architectures and judges what came out: see kernel_report.sh."""
import argparse
import concurrent.futures
import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "target" / "kernel-report"
LAUNCHERS = ROOT / "src" / "model" / "kernels"
# Kernels whose time is the reading of packed weights: a 16-byte load is a lane's whole A fragment.
STREAMS_WEIGHTS = re.compile(r"g4_(expert_)?(gemm|logits)_")
# What those kernels read in pieces below 16 bytes: kernels, bits of a load, how many of them, beside how many 16-byte
# loads, and what they read. ptxas may make several versions of a loop, which multiplies both: loads of the loop are
# held to a proportion, single ones (beside None) to a number. A width that is not listed does not occur.
NARROW_LOADS = [
    # gemm_direct has, for each R, D R first loads of weights and D R refills, and D T of each of activations; D R = 8,
    # and R is 1 or 2 (T = 1), 1, 2 or 4 (T = 2), 2 (experts).
    (r"g4_(gemm|logits)_t1", 64, 24, 32, "activations, 8 bytes a lane and step"),
    (r"g4_(gemm|logits)_t2", 64, 56, 48, "activations, 8 bytes a lane, step and token tile"),
    (r"g4_expert_gemm_t1", 64, 8, 16, "activations, 8 bytes a lane and step"),
    (r"g4_expert_gemm_t1", 32, 9, None, "tile count; expert, first and count of a tile; pair of a row of x, 4 of out"),
    (r"g4_expert_gemm_t8", 32, 38, None, "the same: pairs of 2 rows of x, 32 of out"),
]
LOAD = re.compile(r"\b(?:LDG|LDGSTS|LD)\.[A-Z0-9_.]+|\b(?:UBLKCP|UTMALDG)\b")
WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
PRODUCT = re.compile(r"\b(HMMA|HGMMA|UTCHMMA)\b")
# Of a multiprocessor (CUDA C++ Programming Guide, compute capabilities): threads, blocks, KiB of shared memory, 1 of
# them kept by the system for each block and so 1 less for the largest block; registers are 65,536 on each.
MULTIPROCESSORS = {"80": (2048, 32, 164), "90a": (2048, 32, 228), "100": (2048, 32, 228), "120": (1536, 24, 100)}
REGISTERS, REGISTER_UNIT = 65536, 256
SHARED_OF_A_BLOCK, SHARED_UNIT = 1024, 128
# Kernels that the launcher leaves out where a block of theirs does not fit (gemm_rows_max).
LEFT_OUT = re.compile(r"g4_(gemm|logits)_t16$")
# Dynamic shared bytes of a launch, the most of any number of weight rows.
SHARED_BYTES_ASKED = """
fn asked(name: &str, block_max: usize) -> usize {
    let small = name.strip_prefix("g4_gemm_t").or(name.strip_prefix("g4_logits_t")).and_then(|t| t.parse().ok());
    match (name, small) {
        (_, Some(t)) => (1..=16384).map(|rows| geometry::gemm_geometry(t, 16 * rows, 8, block_max).1).max().unwrap(),
        ("g4_gemm_tiled" | "g4_logits_tiled", _) => {
            geometry::gemm_staged_bytes(8, 8, geometry::gemm_stage_budget(block_max, 8, 8))
        }
        ("g4_expert_gemm_t1", _) => geometry::expert_gemm_geometry(8, 16, 1, 1, block_max).2,
        ("g4_expert_gemm_t8", _) => geometry::expert_gemm_geometry(64, 16, 1, 1, block_max).2,
        _ => geometry::shared_bytes_max(name, block_max as u32) as usize,
    }
}
"""


@dataclass
class Built:
    """One kernel on one architecture."""

    kernel: str
    arch: str
    registers: int = 0
    shared: int = 0  # static, in bytes
    stack: int = 0
    spills: int = 0
    loads: Counter = field(default_factory=Counter)  # of global memory, by bits
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
    constants = dict(re.findall(r"^  (G4_\w+) = (\d+),", header, re.M))
    table = re.findall(r"X\((g4_\w+), \w+, (\w+)\)", header)
    return {name: int(constants.get(threads, threads)) for name, threads in table}


def shared_of_a_launch(kernels, archs):
    """(Kernel, architecture) -> dynamic shared bytes, the most that its launcher gives it."""
    text = "".join(path.read_text() for path in sorted(LAUNCHERS.glob("launch*.rs")))
    constants = dict(re.findall(r"const (\w+): usize = (\d+);", text))
    fixed = {}
    for launch in re.finditer(r"self\.launch\(s, G4_ID_(g4_\w+), (grid|launch)", text):
        # The fourth argument of the grid, which stands in the call or in the last `let` before it.
        at = launch.start(2) if launch[2] == "grid" else text.rindex("= grid(", 0, launch.start())
        size = re.compile(r".*?grid\(.*?, ([\w *]+)\)(?:;|, &?params)").match(text, at)
        factors = [constants.get(word, word) for word in size[1].split(" * ")] if size else ["?"]
        if all(factor.isdigit() for factor in factors):
            fixed[launch[1]] = math.prod(map(int, factors))
    most = {arch: shared_of_a_block_max(arch) for arch in archs}
    # Where they depend on shapes or on the device, the launchers' own functions say them.
    modules = "".join(f'#[path = "{LAUNCHERS}/{name}.rs"]\nmod {name};\n' for name in ("bindings", "geometry"))
    pairs = [(kernel, arch) for kernel in kernels for arch in archs]
    calls = [f'    println!("{{}}", asked("{kernel}", {most[arch]}));\n' for kernel, arch in pairs]
    source, program = OUT / "shared_bytes.rs", OUT / "shared_bytes"
    source.write_text(f"{modules}{SHARED_BYTES_ASKED}fn main() {{\n{''.join(calls)}}}\n")
    subprocess.run([tool("rustc"), "--edition=2024", "-Awarnings", str(source), "-o", str(program)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split()
    return {pair: fixed.get(pair[0], int(asked)) for pair, asked in zip(pairs, said)}


def shared_of_a_block_max(arch):
    """Dynamic shared bytes that a block may opt into."""
    return MULTIPROCESSORS[arch][2] * 1024 - SHARED_OF_A_BLOCK


def occupancy(registers, threads, shared, arch):
    """Percent of a multiprocessor's threads that are resident when each block has `shared` bytes."""
    threads_max, blocks_max, shared_max = MULTIPROCESSORS[arch]
    a_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    # Warps are dealt to four schedulers, each with a quarter of the registers.
    warps = 4 * (REGISTERS // 4 // a_warp)
    a_block = -(-(shared + SHARED_OF_A_BLOCK) // SHARED_UNIT) * SHARED_UNIT
    blocks = min(warps // (threads // 32), threads_max // threads, blocks_max, shared_max * 1024 // a_block)
    return 100 * blocks * threads // threads_max


def bits_of_a_load(instruction):
    """Bits a thread loads; bulk copies are multiples of 16 bytes."""
    if not instruction.startswith("LD"):
        return 128
    return next((WIDTHS[part] for part in instruction.split(".") if part in WIDTHS), 32)


def judge_loads(built):
    """Weights by 16-byte loads only: whatever is narrower is in NARROW_LOADS, in that number."""
    wide = sum(count for bits, count in built.loads.items() if bits >= 128)
    if not wide:
        built.faults.append("no 16-byte global load")
        return
    allowed = {b: (n, beside) for kernels, b, n, beside, _ in NARROW_LOADS if re.fullmatch(kernels, built.kernel)}
    for bits in sorted({b for b in built.loads if b < 128} | allowed.keys()):
        number, beside = allowed.get(bits, (0, None))
        found = built.loads[bits]
        if found != number if beside is None else found * beside != number * wide:
            of = f" beside {beside} of 128" if beside else ""
            built.faults.append(f"{found} global loads of {bits} bits beside {wide} of 128; expected {number}{of}")


def judge(built, sass):
    """Counts in the machine code, and every reason why one kernel must not ship."""
    code = sass.get(built.kernel, "")
    built.loads, built.products = Counter(map(bits_of_a_load, LOAD.findall(code))), len(PRODUCT.findall(code))
    if built.spills:
        built.faults.append(f"{built.spills} bytes of spills")
    if built.stack:
        built.faults.append(f"{built.stack} bytes of stack")
    if not built.registers:
        built.faults.append("ptxas says nothing of it")
    if STREAMS_WEIGHTS.match(built.kernel):
        judge_loads(built)
        if not built.products:
            built.faults.append("no tensor-core product")


def judge_shared(built, dynamic, threads):
    """Percent of the threads that are resident, or None of a kernel that is not launched on its architecture."""
    most = shared_of_a_block_max(built.arch)
    if LEFT_OUT.match(built.kernel) and dynamic > most:
        return None
    share = occupancy(built.registers, threads, built.shared + dynamic, built.arch)
    if built.shared + dynamic > most:
        built.faults.append(f"{built.shared + dynamic} bytes of shared memory, a block may have {most}")
    elif not share:
        built.faults.append("no block of it fits")
    return share


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
    def verdict(kernel, code, stack=0, spill=0):
        text = (
            f"ptxas info    : Compiling entry function '{kernel}' for 'sm_90a'\n"
            f"    {stack} bytes stack frame, {spill} bytes spill stores, 0 bytes spill loads\n"
            "ptxas info    : Used 107 registers, used 1 barriers, 16 bytes smem\n"
        )
        (built,) = parse_ptxas(text, "90a")
        judge(built, parse_sass(f"\t\tFunction : {kernel}\n{code}\n"))
        return built

    product = " HMMA.16816.F32.BF16 R1 ;\n"
    weight, copy = " LDG.E.NA.LTC128B.128.CONSTANT R1, [R2] ;\n", " @P0 LDGSTS.E.BYPASS.128.ZFILL [R1], [R2] ;\n"
    half, word, short = " LDG.E.64 R1, [R2] ;\n", " LDG.E.CONSTANT R1, [R2] ;\n", " @!P1 LDG.E.U16 R1, [R2] ;\n"
    unspecific = " LD.E.64 R1, [R2] ;\n"  # a pointer of which the compiler does not know that it is global
    direct, expert, staged = product + 4 * weight + 3 * half, product + 2 * weight + half + 9 * word, product + copy
    clean = [("g4_gemm_t1", direct), ("g4_gemm_t1", 2 * direct), ("g4_expert_gemm_t1", expert)]
    clean += [("g4_logits_t8", staged), ("g4_gemm_t16", product + " UBLKCP [UR1], [UR2], UR3 ;"), ("g4_embed", short)]
    clean += [("g4_expert_gemm_t1", expert + 2 * weight + half)]
    for kernel, code in clean:
        built = verdict(kernel, code)
        assert not built.faults and (built.registers, built.shared) == (107, 16), built
    assert verdict(*clean[0]).loads == {128: 4, 64: 3} and built.products == 1, built
    planted = [("g4_gemm_t1", direct, 8, 0), ("g4_gemm_t1", direct, 0, 4)]
    planted += [("g4_gemm_t1", direct.replace("HMMA", "FFMA")), ("g4_gemm_t1", product + 7 * half)]
    planted += [("g4_gemm_t1", direct + half), ("g4_gemm_t1", direct + short)]
    planted += [("g4_gemm_t1", direct + unspecific), ("g4_gemm_t1", direct.replace(weight, 2 * half, 1))]
    planted += [("g4_expert_gemm_t1", expert + word), ("g4_expert_gemm_t1", expert.replace(word, "", 1))]
    planted += [("g4_expert_gemm_t8", staged), ("g4_gemm_tiled", product + weight + copy + word)]
    for plant in planted + [("g4_logits_t8", staged + copy.replace("BYPASS.128", extra)) for extra in ("64", "")]:
        assert len(verdict(*plant).faults) == 1, plant

    # 107 registers are 3,584 a warp: four warps a scheduler, two blocks of 256.
    assert [occupancy(r, 256, 0, "90a") for r in (107, 32, 255)] == [25, 100, 12], occupancy(107, 256, 0, "90a")
    # Of 228 KiB, blocks of 112 with their one more: two, of 114 one; of 99 in 100 one; 24 blocks are the most there.
    assert [occupancy(107, 256, kib * 1024, "90a") for kib in (112, 113, 114, 227, 228)] == [25, 25, 12, 12, 0]
    assert [occupancy(32, threads, 99 * 1024, "120") for threads in (256, 512)] == [16, 33]
    assert [occupancy(16, 32, 0, arch) for arch in ("80", "120")] == [50, 50]
    for dynamic, kernel, share, faults in (
        (101377, "g4_gemm_t16", None, 0), (101376, "g4_gemm_t8", 16, 0), (101377, "g4_gemm_t8", 0, 1)
    ):  # fmt: skip
        built = Built(kernel, "120", registers=107)
        assert (judge_shared(built, dynamic, 256), len(built.faults)) == (share, faults), built


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("archs", nargs="+", choices=MULTIPROCESSORS)
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
    dynamic = shared_of_a_launch([name for name in table if name in threads], arguments.archs)
    print("flags " + " ".join(flags))
    print("registers, KiB of shared memory and % of the threads resident with the most that a launch asks for (none:")
    print("not launched there), global loads of 16 bytes / of fewer, tensor-core products")
    print(f"{'kernel':<25}" + "".join(f"{'sm_' + arch:>26}" for arch in arguments.archs))
    for name, by_arch in table.items():
        cells = []
        for arch in arguments.archs:
            k = by_arch.get(arch)
            if not k or not k.registers:
                cells.append("-")
                continue
            if name not in threads:
                k.faults.append("not in the table of gemma4_kernels.h")
                continue
            asked = dynamic[name, arch]
            share = judge_shared(k, asked, threads[name])
            resident = "none" if share is None else f"{share}%"
            wide = sum(count for bits, count in k.loads.items() if bits >= 128)
            loads = f"{wide}/{k.loads.total() - wide}"
            shared = -(-(k.shared + asked) // 1024)
            cells.append(f"{k.registers:>4}{shared:>4}K{resident:>5}{loads:>8}{k.products:>4}")
        print(f"{name:<25}" + "".join(f"{cell:>26}" for cell in cells))
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
