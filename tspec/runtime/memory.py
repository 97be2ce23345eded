"""Memory that native code reads and writes by address: aligned, zeroed, on huge pages where the system has them."""

import mmap

import numpy as np

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 1 << 21


def allocate(size_bytes: int) -> np.ndarray:
    """Return uint8 [size_bytes], zeroed and page-aligned. Streams from huge pages miss the TLB less often."""
    size = max(size_bytes, 1)
    region = mmap.mmap(-1, -(-size // PAGE_BYTES) * PAGE_BYTES)
    if size >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, dtype=np.uint8)[:size_bytes]


def address(array: np.ndarray) -> int:
    """The address of the first element."""
    return int(array.ctypes.data)
