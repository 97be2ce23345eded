"""Memory that native code reads and writes by address: aligned, zeroed, on huge pages where the system has them."""

import mmap

import numpy as np

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 1 << 21

_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Without it mmap shares the memory with forked processes, and most systems have huge pages for private memory only."""


def allocate(size_bytes: int) -> np.ndarray:
    """Return uint8 [size_bytes], zeroed and page-aligned. Streams from huge pages miss the TLB less often.

    A forked process gets a copy: nothing that it writes, as it ends, reaches the threads of this one.
    """
    size = -(-max(size_bytes, 1) // PAGE_BYTES) * PAGE_BYTES
    region = mmap.mmap(-1, size, **_PRIVATE)
    if size >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, dtype=np.uint8)[:size_bytes]


def address(array: np.ndarray) -> int:
    """The address of the first element."""
    return int(array.ctypes.data)
