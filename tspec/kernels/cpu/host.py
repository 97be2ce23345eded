"""What the host CPU offers, read once: vector width and the register blocks that fit its registers."""

import os
import platform
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm


@dataclass(frozen=True, slots=True)
class Host:
    """The choices that depend on the CPU. None of them changes a result: only which outputs share a loop.

    lanes        float32 lanes of one register
    row_blocks   numbers of rows that a register block may hold, largest first; with 3 registers of
                 outputs a row, the largest fills the register file (24 of 32, or 12 of 16)
    prefetch     bytes ahead of the stream at which weights are prefetched (measured: +8% on Ice Lake)
    """

    name: str
    lanes: int
    row_blocks: tuple[int, ...]
    prefetch: int = 1024

    @property
    def cheap_rows(self) -> int:
        """Rows that a pass verifies at little more than the price of one: those of the tallest block."""
        return self.row_blocks[0]


@cache
def read_host() -> Host:
    """The host as Numba compiles for it, so that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are honoured."""
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = ",".join(f"+{name}" for name, has in llvm.get_host_cpu_features().items() if has)
    if platform.machine() in ("x86_64", "AMD64"):
        if "+avx512f" in features:
            return Host("avx512", lanes=16, row_blocks=(8, 4, 2, 1))
        return Host("avx2" if "+avx2" in features else "x86-64", lanes=8, row_blocks=(4, 2, 1))
    return Host(platform.machine(), lanes=8, row_blocks=(4, 2, 1))


def cpu_model() -> str:
    """The CPU's own name."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return name


def usable_cpus() -> int:
    """CPUs that this process may run on: its affinity mask, cut by a cgroup quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, int(quota) // int(period)))
