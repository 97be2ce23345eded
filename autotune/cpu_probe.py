"""What this CPU sustains: how fast its memory can be read, and how fast its register blocks multiply.

The read is the bound that plain decoding is held against: every usable CPU streams its part of a buffer far larger
than the caches, with full vectors, several sums in flight, and the same prefetch distance as the kernels. The product
is that of the kernels: bfloat16 weights that lie in the second cache, and the tallest block of rows.
"""

import threading
import time
from collections.abc import Callable

import numba
import numpy as np

from tspec.kernels.cpu import simd
from tspec.kernels.cpu.host import read_host, usable_cpus
from tspec.kernels.cpu.register_block import make_product
from tspec.runtime.memory import address, allocate

BUFFER_BYTES = 1 << 29
ROUNDS = 5

_LANES = read_host().lanes
_FLOATS_A_STEP = 4 * _LANES
# A product with one row of one number a step reads the stream and does next to nothing else.
_stream = make_product((1,), paired=False, vectors=4, lanes=_LANES, prefetches=True)
_AHEAD = read_host().prefetch

_ROWS, _OUTPUTS, _STEPS, _CALLS = read_host().cheap_rows, 3 * _LANES, 512, 2000
_multiply = make_product(read_host().row_blocks, paired=True, vectors=3, lanes=_LANES)


@numba.njit(nogil=True)
def _read(start: int, size_bytes: int, ones: int, sums: int) -> None:
    """Stream size_bytes from `start`, 4096 steps at a time."""
    block = 4096 * _FLOATS_A_STEP * 4
    for offset in range(0, size_bytes - block + 1, block):
        _stream(simd.F32, ones, 0, 1, start + offset, _FLOATS_A_STEP * 4, 4096, sums, 0, 1, _AHEAD)


@numba.njit(nogil=True)
def _compute(rows: int, weights: int, sums: int) -> None:
    """Multiply the same rows by the same panel again and again; a step takes a pair of bfloat16 an output."""
    for _ in range(_CALLS):
        _multiply(
            simd.BF16, rows, _STEPS * 8, _ROWS, weights, _OUTPUTS * 4, _STEPS, sums, _OUTPUTS * 4, _ROWS, 0
        )


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
        ones = address(self._ones)
        seconds = _on_all(
            lambda cpu: _read(address(self._memory) + cpu * part, part, ones, address(self._sums[cpu]))
        )
        return BUFFER_BYTES / seconds / 1e9


class ProductProbe:
    """Measures how fast register blocks multiply, weights and rows in caches."""

    def __init__(self) -> None:
        self._rows = np.ones((_ROWS, 2 * _STEPS), dtype=np.float32)
        self._weights = np.zeros((_STEPS, _OUTPUTS, 2), dtype=np.uint16)
        self._sums = np.zeros((usable_cpus(), _ROWS * _OUTPUTS), dtype=np.float32)
        self.tflops()

    def tflops(self) -> float:
        """Products and sums of all CPUs, in 10^12 a second."""
        rows, weights = address(self._rows), address(self._weights)
        seconds = _on_all(lambda cpu: _compute(rows, weights, address(self._sums[cpu])))
        return 2 * _ROWS * _OUTPUTS * 2 * _STEPS * _CALLS * usable_cpus() / seconds / 1e12


def measure_cpu() -> tuple[float, float]:
    """GB/s that memory is read with, and 10^12 products and sums a second."""
    return median_of(BandwidthProbe().read_gb_s), median_of(ProductProbe().tflops)


def _on_all(work: Callable[[int], object]) -> float:
    """Seconds until all CPUs have done their part."""
    threads = [threading.Thread(target=work, args=(cpu,)) for cpu in range(usable_cpus())]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def median_of(probe: Callable[[], float]) -> float:
    """The median of several measurements."""
    return float(np.median([probe() for _ in range(ROUNDS)]))
