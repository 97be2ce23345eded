"""Writing nodes to slots and committing a path, through shuffled block tables.

Run: pytest tests/kernels/reference/test_kv_cache.py
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.reference import REFERENCES
from tspec.kernels.reference.attention import visible
from tspec.kernels.reference.kv_cache import place_of_slot

TABLE = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
HEADS, HEAD_DIM = 2, 4


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def slot_of(cache: torch.Tensor, row: int, slot: int) -> torch.Tensor:
    block, offset = place_of_slot(TABLE, row, slot)
    return cache[block, :, offset]


def write(prefix_len: torch.Tensor, num_nodes: torch.Tensor, width: int, dtype: torch.dtype = torch.float32):
    k = torch.arange(2 * width * HEADS * HEAD_DIM).view(2, width, -1).float()
    empty = torch.full((4, HEADS, BLOCK_TOKENS, HEAD_DIM), torch.nan, dtype=dtype)
    caches = REFERENCES["kv_write"]({}, k, -k, empty, empty, TABLE, prefix_len, num_nodes)
    assert empty.isnan().all()
    return k, caches


@given(starts=st.tuples(*[st.integers(0, 120)] * 2), counts=st.tuples(*[st.integers(1, 8)] * 2))
@settings(max_examples=50, deadline=None)
def test_each_node_is_written_to_its_slot_and_padding_nowhere(starts, counts):
    k, (k_cache, v_cache) = write(numbers(*starts), numbers(*counts), 8)
    for row in range(2):
        for node in range(counts[row]):
            expected = k[row, node].view(HEADS, HEAD_DIM)
            assert torch.equal(slot_of(k_cache, row, starts[row] + node), expected)
            assert torch.equal(slot_of(v_cache, row, starts[row] + node), -expected)
    written = ~k_cache.isnan().all(dim=(1, 3))
    assert written.sum() == sum(counts)


def test_a_cache_of_the_weights_dtype_rounds():
    _, (k_cache, _) = write(numbers(0, 0), numbers(1, 1), 2, torch.bfloat16)
    assert k_cache.dtype == torch.bfloat16


@given(
    start=st.integers(0, 110),
    path=st.lists(st.integers(1, 7), max_size=7, unique=True).map(sorted),
)
@settings(max_examples=100, deadline=None)
def test_a_commit_moves_the_accepted_nodes_together(start, path):
    _, caches = write(numbers(start, 9), numbers(8, 8), 8)
    rows = torch.full((2, 8), -1, dtype=torch.int32)
    rows[0, : len(path)] = numbers(*path)
    moved = REFERENCES["kv_commit"]({}, rows, numbers(len(path) + 1, 1), numbers(start, 9), TABLE, *caches)
    for before, after in zip(caches, moved, strict=True):
        assert torch.equal(slot_of(after, 0, start), slot_of(before, 0, start))
        for place, node in enumerate(path):
            assert torch.equal(slot_of(after, 0, start + place + 1), slot_of(before, 0, start + node))
        for node in range(8):
            assert torch.equal(slot_of(after, 1, 9 + node), slot_of(before, 1, 9 + node))


def test_a_chain_moves_nothing():
    _, caches = write(numbers(60, 9), numbers(8, 8), 8)
    path = torch.arange(1, 9, dtype=torch.int32).repeat(2, 1)
    moved = REFERENCES["kv_commit"]({}, path, numbers(8, 8), numbers(60, 9), TABLE, *caches)
    for before, after in zip(caches, moved, strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=0, equal_nan=True)


def test_a_window_counts_positions_and_not_slots():
    """Nodes 1 and 2 are siblings at position 6: node 3, at 7 with a window of 2, sees node 2 and itself."""
    ancestors = torch.tensor([0b1, 0b11, 0b101, 0b1101])
    assert visible(ancestors, 5, 2)[3].tolist() == [False] * 5 + [False, False, True, True]
    assert visible(ancestors, 5, 3)[1].tolist() == [False] * 4 + [True, True, True, False, False]
    assert visible(ancestors, 5, None)[2].tolist() == [True] * 5 + [True, False, True, False]
