"""Commit moves accepted rows of all layers in one launch, to the byte as the reference does.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_kv_commit.py
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_cases import path_to
from support.kernel_case import chains, random_trees

from tspec.core.errors import ContractError
from tspec.kernels.cuda.kv_commit import kv_commit
from tspec.kernels.reference import REFERENCES

LAYERS, KV_HEADS = 2, 2


def commit_and_compare(trees, prefixes, seed=0, head_dim=24, dtype=torch.float16):
    """Commit the path to a random node of each tree; returns how many bytes changed."""
    choose = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    batch, nodes = trees.tokens.shape
    max_blocks = -(-(max(prefixes) + nodes) // 64)
    path, num_out = np.full((batch, nodes), -1, np.int32), np.ones(batch, np.int32)
    for row, count in enumerate(trees.num_nodes.tolist()):
        line = path_to(trees.parents[row], int(choose.integers(0, count))) if count else []
        path[row, : len(line)], num_out[row] = line, len(line) + 1
    table = torch.randperm(batch * max_blocks, generator=generator).view(batch, max_blocks).int()
    shape = (LAYERS, batch * max_blocks, KV_HEADS, 64, head_dim)
    before = [torch.randn(shape, generator=generator).to(dtype) for _ in "kv"]
    where = (
        torch.from_numpy(path),
        torch.from_numpy(num_out),
        torch.tensor(prefixes, dtype=torch.int32),
        table,
    )
    after = [cache.clone() for cache in before]
    kv_commit(*after, *where)
    expected = REFERENCES["kv_commit"]({}, *where, *(layer for cache in before for layer in cache))
    assert all(torch.equal(found, want) for found, want in zip((*after[0], *after[1]), expected, strict=True))
    return sum((found != start).sum().item() for found, start in zip(after, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_path_of_a_tree_lies_together_after_the_commit(dtype):
    assert commit_and_compare(random_trees((40, 9, 0), 4), (60, 255, 0), seed=3, dtype=dtype)


@settings(deadline=None, max_examples=20)
@given(
    counts=st.lists(st.integers(0, 64), min_size=1, max_size=3),
    prefixes=st.lists(st.integers(0, 200), min_size=3, max_size=3),
    seed=st.integers(0, 1 << 32),
)
def test_any_path_is_moved_as_the_reference_moves_it(counts, prefixes, seed):
    counts = [max(counts[0], 1), *counts[1:]]
    commit_and_compare(random_trees(counts, seed), prefixes[: len(counts)], seed)


def test_a_chain_moves_nothing():
    assert commit_and_compare(chains((30, 5)), (63, 10), seed=1) == 0


def test_the_longest_path_past_one_skipped_node_moves_every_row_by_one_slot():
    """Each target is the source of the row before it: reads have to come before writes."""
    trees = chains((64,))
    trees.parents[0, 2] = 0
    assert path_to(trees.parents[0], 63)[:2] == [2, 3]
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(1, 3, 1, 64, 16, generator=generator)
    path = torch.tensor([[*range(2, 64), -1, -1]], dtype=torch.int32)
    where = torch.tensor([63], dtype=torch.int32), torch.tensor([50], dtype=torch.int32)
    table = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    after = [before.clone(), before.clone()]
    kv_commit(*after, path, *where, table)
    slots = before[0, table[0].long()].transpose(1, 2).reshape(-1, 16)
    moved = after[0][0, table[0].long()].transpose(1, 2).reshape(-1, 16)
    assert torch.equal(moved[51:113], slots[52:114])
    assert torch.equal(moved[:51], slots[:51]) and torch.equal(moved[113:], slots[113:])


def test_a_path_of_another_dtype_is_refused():
    cache = torch.zeros(1, 1, 1, 64, 16)
    one = torch.ones(1, dtype=torch.int32)
    with pytest.raises(ContractError, match="path of kv_commit"):
        kv_commit(cache, cache.clone(), torch.zeros(1, 4), one, one, torch.zeros(1, 1, dtype=torch.int32))
