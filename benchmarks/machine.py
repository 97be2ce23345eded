"""The machine that a figure was measured on: its CPU, and how fast its memory can be read.

The read is the bound that plain decoding is held against: every usable CPU streams its part of a buffer far larger
than the caches, with full vectors, several sums in flight, and the same prefetch distance as the kernels.
"""

import threading
import time

import numba
import numpy as np

from tspec.kernels.cpu import simd
from tspec.kernels.cpu.host import cpu_model, read_host, usable_cpus
from tspec.kernels.cpu.register_block import make_product
from tspec.runtime.memory import address, allocate

BUFFER_BYTES = 1 << 29
ROUNDS = 5

_LINE_LANES = read_host().lanes
_FLOATS_A_STEP = 4 * _LINE_LANES
# A product with one row of one number a step reads the stream and does next to nothing else.
_stream = make_product((1,), paired=False, vectors=4, lanes=_LINE_LANES, prefetches=True)
_AHEAD = read_host().prefetch


@numba.njit(nogil=True)
def _read(start, size_bytes, ones, sums):
    """Stream size_bytes from `start`, 4096 steps at a time."""
    block = 4096 * _FLOATS_A_STEP * 4
    for offset in range(0, size_bytes - block + 1, block):
        _stream(simd.F32, ones, 0, 1, start + offset, _FLOATS_A_STEP * 4, 4096, sums, 0, 1, _AHEAD)


def cpu_name() -> str:
    """The CPU's own name and the vector width that the kernels use on it."""
    return f"{cpu_model()}, {usable_cpus()} CPUs, {read_host().name}"


class BandwidthProbe:
    """Measures the read bandwidth again and again, beside whatever else is timed."""

    def __init__(self) -> None:
        self._memory = allocate(BUFFER_BYTES)
        self._memory.view(np.float32)[:] = 1.0
        self._ones = np.ones(4096, dtype=np.float32)
        self._sums = np.zeros((usable_cpus(), 256), dtype=np.float32)
        self.read_gb_s()

    def read_gb_s(self) -> float:
        """One read of the whole buffer by all CPUs, in GB/s."""
        part = BUFFER_BYTES // usable_cpus()
        threads = [
            threading.Thread(
                target=_read,
                args=(
                    address(self._memory) + cpu * part,
                    part,
                    address(self._ones),
                    address(self._sums[cpu]),
                ),
            )
            for cpu in range(usable_cpus())
        ]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return BUFFER_BYTES / (time.perf_counter() - start) / 1e9


def machine_line() -> str:
    """One line: CPU and the median read bandwidth."""
    probe = BandwidthProbe()
    return f"{cpu_name()}, reads {np.median([probe.read_gb_s() for _ in range(ROUNDS)]):.1f} GB/s"


if __name__ == "__main__":
    print(machine_line())
