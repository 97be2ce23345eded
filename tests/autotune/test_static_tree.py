"""The dynamic programming's trees are the best there are.

Run: pytest tests/autotune/test_static_tree.py
"""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.static_tree import best_trees, expected_tokens

MOST_NODES = 8


@cache
def shapes(size, num_depths, num_ranks):
    """Every tree of `size` nodes: (rank, subtree) of each child of its root, in order of ranks."""
    return tuple(forests(size - 1, num_depths, num_ranks, 0))


def forests(left, num_depths, num_ranks, first_rank):
    """Every way to hang `left` nodes on a node as candidates of rank `first_rank` and after."""
    if left == 0:
        yield ()
        return
    for rank in range(first_rank, num_ranks if num_depths else 0):
        for share in range(1, left + 1):
            for tree in shapes(share, num_depths - 1, num_ranks):
                for others in forests(left - share, num_depths, num_ranks, rank + 1):
                    yield ((rank, tree), *others)


def worth(shape, chances, depth=0):
    return 1 + sum(chances[depth, rank] * worth(below, chances, depth + 1) for rank, below in shape)


@st.composite
def acceptance(draw):
    """Chances by depth and rank, in no order; each depth's sum is at most 1."""
    num_depths, num_ranks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    parts = st.lists(st.integers(0, 20), min_size=num_ranks + 1, max_size=num_ranks + 1)
    rows = [draw(parts) for _ in range(num_depths)]
    return np.array([[each / max(1, sum(row)) for each in row[:-1]] for row in rows])


@settings(max_examples=60, deadline=None)
@given(acceptance())
def test_no_tree_of_up_to_8_nodes_is_better(chances):
    num_depths, num_ranks = chances.shape
    trees = best_trees(chances, MOST_NODES)
    best = 0.0
    for size, tree in enumerate(trees, start=1):
        found = [worth(shape, chances) for shape in shapes(size, num_depths, num_ranks)]
        best = max(best, *found) if found else best
        assert tree.expected_tokens == pytest.approx(best)
        assert len(tree.parents) <= size


@settings(max_examples=100, deadline=None)
@given(acceptance(), st.integers(1, 40))
def test_a_tree_is_one_and_is_worth_what_it_says(chances, size):
    tree = best_trees(chances, size)[-1]
    assert tree.parents[0] == -1
    assert all(0 <= parent < node for node, parent in enumerate(tree.parents) if node)
    edges = list(zip(tree.parents, tree.ranks, strict=True))
    assert len(set(edges)) == len(edges)
    assert tree.depth <= chances.shape[0] and tree.width <= chances.shape[1]
    assert expected_tokens(tree.parents, tree.ranks, chances) == pytest.approx(tree.expected_tokens)


def test_certain_candidates_make_a_chain_and_equal_ones_a_bush():
    chain = best_trees(np.array([[1.0, 0.0]] * 4), 4)[-1]
    assert (chain.parents, chain.ranks, chain.expected_tokens) == ((-1, 0, 1, 2), (0, 0, 0, 0), 4.0)
    bush = best_trees(np.array([[0.3, 0.3, 0.3], [0.1, 0.1, 0.1]]), 4)[-1]
    assert (bush.parents, bush.ranks) == ((-1, 0, 0, 0), (0, 0, 1, 2))


def test_candidates_that_are_never_right_are_left_out():
    assert best_trees(np.zeros((3, 2)), 5)[-1].num_candidates == 0
