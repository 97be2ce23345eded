"""The arrays behind a plan's states, in the layout of the CPU kernels: KV caches, and features of the target."""

from collections.abc import Mapping

import numpy as np

from tspec.core.dtypes import DType
from tspec.graph.ir import Shape
from tspec.kernels.cpu.simd import LANES
from tspec.runtime.memory import allocate

States = Mapping[str, tuple[Shape, DType]]


def state_bytes(name: str, shape: Shape, dtype: DType, num_blocks: int) -> int:
    """Bytes of one array. Rows of a value cache are padded to whole vectors (kernels/cpu/kv_cache.py)."""
    if len(shape) == 3:
        _, block_tokens, width = shape
        assert isinstance(block_tokens, int) and isinstance(width, int), shape
        return num_blocks * block_tokens * width * dtype.itemsize_bytes
    _, num_kv_heads, block_tokens, head_dim = shape
    assert isinstance(num_kv_heads, int) and isinstance(block_tokens, int) and isinstance(head_dim, int), (
        shape
    )
    row = head_dim if name.startswith("k_cache") else -(-head_dim // LANES) * LANES
    return num_blocks * num_kv_heads * block_tokens * row * dtype.itemsize_bytes


def block_bytes(states: States) -> int:
    """Bytes that one KV block takes in all states together."""
    return sum(state_bytes(name, shape, dtype, 1) for name, (shape, dtype) in states.items())


def allocate_states(states: States, num_blocks: int) -> dict[str, np.ndarray]:
    """Return zeroed memory for each state."""
    return {
        name: allocate(state_bytes(name, shape, dtype, num_blocks)) for name, (shape, dtype) in states.items()
    }
