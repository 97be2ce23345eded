"""The acceptance kernel walks every tree as the reference does.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_accept.py
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_case import random_trees

from tspec.core.errors import ContractError
from tspec.core.tree import CandidateTrees, fill_ancestors
from tspec.kernels.cuda.accept import accept_match
from tspec.kernels.reference import REFERENCES


def inputs_of(trees: CandidateTrees, node_tokens: np.ndarray) -> list[torch.Tensor]:
    """Inputs of the op; ancestors and depth of padding are what a bucket may have left there."""
    ancestors = np.full(trees.tokens.shape, -1, np.int64)
    depth = np.full(trees.tokens.shape, 5, np.int32)
    fill_ancestors(trees.parents, trees.num_nodes, ancestors, depth)
    return [torch.from_numpy(each) for each in (node_tokens, trees.tokens, ancestors, depth, trees.num_nodes)]


def run(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    tokens, num_nodes = inputs[1], inputs[4]
    outs = torch.full_like(tokens, 77), torch.full_like(num_nodes, 77), torch.full_like(tokens, 77)
    accept_match(*outs, *inputs)
    return outs


def assert_like_reference(inputs):
    for found, want in zip(run(inputs), REFERENCES["accept_match"]({}, *inputs), strict=True):
        assert torch.equal(found, want)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=3), st.integers(0, 2**30), st.integers(2, 5))
def test_a_random_tree_is_walked_as_the_reference_walks_it(counts, seed, vocab):
    """Few tokens, so that walks go deep; siblings that share one are allowed here: the first counts."""
    generator = np.random.default_rng(seed)
    trees = random_trees([*counts, 1], seed)
    shape = trees.tokens.shape
    tokens = generator.integers(0, vocab, shape).astype(np.int32)
    node_tokens = generator.integers(0, vocab, shape).astype(np.int32)
    assert_like_reference(inputs_of(CandidateTrees(tokens, trees.parents, trees.num_nodes), node_tokens))


@pytest.mark.parametrize("accepted", [0, 1, 31, 62, 63])
def test_a_chain_of_64_nodes_is_accepted_up_to_the_first_difference(accepted):
    """Bit 63 of the last node's ancestors is the sign of an int64."""
    parents = np.arange(-1, 63, dtype=np.int32)[None]
    tokens = np.arange(100, 164, dtype=np.int32)[None]
    node_tokens = tokens + 1
    node_tokens[0, accepted] = 7
    inputs = inputs_of(CandidateTrees(tokens, parents, np.array([64], np.int32)), node_tokens)
    out_tokens, num_out, path = run(inputs)
    assert num_out.item() == accepted + 1
    assert out_tokens[0, : accepted + 1].tolist() == [*range(101, 101 + accepted), 7]
    assert path[0, :accepted].tolist() == list(range(1, accepted + 1))
    assert_like_reference(inputs)


def test_a_refused_root_child_still_emits_the_bonus():
    trees = random_trees([6], 0)
    node_tokens = np.full_like(trees.tokens, 1000)
    out_tokens, num_out, path = run(inputs_of(trees, node_tokens))
    assert (num_out.item(), out_tokens[0].tolist(), path[0].tolist()) == (1, [1000] + [-1] * 5, [-1] * 6)


def test_a_grandchild_that_matches_is_not_taken_for_a_child():
    tokens = np.array([[1, 2, 3, 3]], np.int32)
    parents = np.array([[-1, 0, 1, 0]], np.int32)
    node_tokens = np.array([[3, 3, 9, 8]], np.int32)
    inputs = inputs_of(CandidateTrees(tokens, parents, np.array([4], np.int32)), node_tokens)
    out_tokens, num_out, path = run(inputs)
    assert (num_out.item(), path[0, 0].item(), out_tokens[0, :2].tolist()) == (2, 3, [3, 8])


def test_padding_that_matches_is_never_accepted():
    tokens = np.full((2, 5), 4, np.int32)
    parents = np.tile(np.arange(-1, 4, dtype=np.int32), (2, 1))
    inputs = inputs_of(CandidateTrees(tokens, parents, np.array([2, 0], np.int32)), tokens.copy())
    inputs[2][:] = torch.from_numpy(np.array([1, 3, 7, 15, 31], np.int64))
    assert run(inputs)[1].tolist() == [2, 1]
    assert_like_reference(inputs)


def test_a_tree_of_65_nodes_is_refused():
    inputs = inputs_of(random_trees([3], 0), np.zeros((1, 3), np.int32))
    wide = [each.repeat(1, 22)[:, :65].contiguous() if each.dim() == 2 else each for each in inputs]
    with pytest.raises(ContractError, match="nodes of accept_match: got 65, need at most 64"):
        run(wide)
