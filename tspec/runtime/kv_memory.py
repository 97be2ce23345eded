"""The KV cache arrays behind a plan's states, in the layout of the CPU kernels."""

from collections.abc import Mapping

import numpy as np

from tspec.core.dtypes import DType
from tspec.graph.ir import Shape
from tspec.kernels.cpu.simd import LANES
from tspec.runtime.memory import allocate

States = Mapping[str, tuple[Shape, DType]]


def state_bytes(name: str, shape: Shape, dtype: DType, num_blocks: int) -> int:
    """Bytes of one cache array; value rows are padded to whole vectors (kernels/cpu/kv_cache.py).

    Of features, which are no cache of heads: their rows as they are.
    """
    if len(shape) == 3:
        return num_blocks * int(shape[1]) * int(shape[2]) * dtype.itemsize_bytes
    _, num_kv_heads, block_tokens, head_dim = shape
    assert isinstance(num_kv_heads, int) and isinstance(block_tokens, int) and isinstance(head_dim, int), (
        shape
    )
    row = head_dim if name.startswith("k_cache") else -(-head_dim // LANES) * LANES
    return num_blocks * num_kv_heads * block_tokens * row * dtype.itemsize_bytes


def block_bytes(states: States) -> int:
    """Bytes that one KV block takes in all layers together."""
    return sum(state_bytes(name, shape, dtype, 1) for name, (shape, dtype) in states.items())


def allocate_states(states: States, num_blocks: int) -> dict[str, np.ndarray]:
    """Return zeroed memory for each state."""
    return {
        name: allocate(state_bytes(name, shape, dtype, num_blocks)) for name, (shape, dtype) in states.items()
    }
