"""Acceptance by match on random trees, against a walk over the parents.

Run: pytest tests/kernels/reference/test_accept.py
"""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import tree_inputs
from support.strategies import candidate_trees

from tspec.core.tree import CandidateTrees, chain
from tspec.kernels.reference import REFERENCES


def accept(trees: CandidateTrees, node_tokens: np.ndarray) -> tuple[np.ndarray, ...]:
    inputs = tree_inputs(trees, [0] * len(trees.tokens), num_blocks=len(trees.tokens))
    operands = [inputs[name] for name in ("tokens", "ancestors", "depth", "num_nodes")]
    results = REFERENCES["accept_match"]({}, torch.from_numpy(node_tokens), *operands)
    return tuple(result.numpy() for result in results)


def walk(tokens: list[int], parents: list[int], wanted: list[int]) -> tuple[list[int], list[int]]:
    """Tokens and path of one row without masks: the child is looked up by its parent and its token."""
    child = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    node, out, path = 0, [wanted[0]], []
    while (node, wanted[node]) in child:
        node = child[node, wanted[node]]
        path.append(node)
        out.append(wanted[node])
    return out, path


@given(data=st.data(), trees=candidate_trees())
@settings(max_examples=200, deadline=None)
def test_the_verdict_is_that_of_a_walk_over_the_parents(data, trees):
    trees.check()
    shape = trees.tokens.shape
    flat = data.draw(st.lists(st.integers(0, 4), min_size=trees.tokens.size, max_size=trees.tokens.size))
    node_tokens = np.array(flat, np.int32).reshape(shape)
    out_tokens, num_out, paths = accept(trees, node_tokens)
    for row, count in enumerate(trees.num_nodes):
        live = [array[row, :count].tolist() for array in (trees.tokens, trees.parents, node_tokens)]
        out, path = walk(*live)
        assert num_out[row] == len(out)
        assert out_tokens[row].tolist() == out + [-1] * (shape[1] - len(out))
        assert paths[row].tolist() == path + [-1] * (shape[1] - len(path))


def test_a_refused_root_child_still_emits_the_bonus():
    out_tokens, num_out, path = accept(chain(np.array([1, 2, 3])), np.array([[9, 3, 4]], np.int32))
    assert (out_tokens.tolist(), num_out.tolist(), path.tolist()) == ([[9, -1, -1]], [1], [[-1, -1, -1]])


def test_a_whole_chain_is_accepted_and_followed_by_the_bonus():
    out_tokens, num_out, path = accept(chain(np.array([1, 2, 3])), np.array([[2, 3, 4]], np.int32))
    assert (out_tokens.tolist(), num_out.tolist(), path.tolist()) == ([[2, 3, 4]], [3], [[1, 2, -1]])


def test_the_root_alone_emits_one_token():
    out_tokens, num_out, _ = accept(chain(np.array([1])), np.array([[7]], np.int32))
    assert (out_tokens.tolist(), num_out.tolist()) == ([[7]], [1])


def test_padding_that_looks_like_a_child_is_not_accepted():
    """Padding may hold anything: here a copy of the second node, behind num_nodes."""
    trees = chain(np.array([1, 2]))
    inputs = tree_inputs(trees, [0], num_blocks=1)
    results = REFERENCES["accept_match"](
        {},
        torch.tensor([[2, 5]], dtype=torch.int32),
        inputs["tokens"],
        inputs["ancestors"],
        inputs["depth"],
        torch.tensor([1], dtype=torch.int32),
    )
    assert results[0].tolist() == [[2, -1]]


def test_a_tree_of_64_nodes_uses_the_sign_bit():
    tokens = np.arange(64)
    out_tokens, num_out, _ = accept(chain(tokens), (tokens + 1)[None].astype(np.int32))
    assert num_out.tolist() == [64]
    assert out_tokens[0, -1] == 64
