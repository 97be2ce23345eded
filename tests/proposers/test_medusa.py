"""Medusa's levels: every node has the same candidates below it, and the best products go on.

Run: pytest tests/proposers/test_medusa.py
"""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tspec.proposers.growth import best_trees
from tspec.proposers.medusa import combine


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1 << 32),
    depth=st.integers(1, 4),
    most=st.integers(1, 4),
    max_nodes=st.integers(2, 40),
)
def test_the_tree_is_of_the_likeliest_paths_by_the_product_of_the_heads(seed, depth, most, max_nodes):
    """As long as no level has to drop a path that would be among the best: each has `most` of its own."""
    random = np.random.default_rng(seed)
    tokens = [random.permutation(50)[None, :most].astype(np.int32) for _ in range(depth)]
    logprobs = [-np.sort(random.exponential(2.0, (1, most)).astype(np.float32)) for _ in range(depth)]
    levels = combine(tokens, logprobs)
    trees = best_trees(np.array([99], np.int32), levels, np.array([max_nodes], np.int32))
    trees.check()
    paths = paths_of(trees)
    goes_on = [()]
    all_scored = {}
    for length in range(1, depth + 1):
        scored = {
            (*path, rank): sum(float(logprobs[head][0, each]) for head, each in enumerate((*path, rank)))
            for path, rank in product(goes_on, range(most))
        }
        all_scored |= scored
        goes_on = sorted(scored, key=lambda path: -scored[path])[:most]
    best = sorted(all_scored, key=lambda path: -all_scored[path])[: max_nodes - 1]
    wanted = {tuple(int(tokens[head][0, rank]) for head, rank in enumerate(path)) for path in best}
    assert paths == wanted


def paths_of(trees):
    paths = [()]
    for node in range(1, int(trees.num_nodes[0])):
        paths.append((*paths[trees.parents[0, node]], int(trees.tokens[0, node])))
    return set(paths[1:])


def test_each_row_has_its_own_heads():
    tokens = [np.array([[1, 2], [3, 4]], np.int32), np.array([[5, 6], [7, 8]], np.int32)]
    logprobs = [
        np.array([[-1.0, -2.0], [-0.1, -9.0]], np.float32),
        np.array([[-1.0, -4.0], [-0.2, -0.3]], np.float32),
    ]
    trees = best_trees(np.array([90, 91], np.int32), combine(tokens, logprobs), np.array([4, 4], np.int32))
    assert trees.tokens.tolist() == [[90, 1, 2, 5], [91, 3, 7, 8]]
    assert trees.parents.tolist() == [[-1, 0, 0, 1], [-1, 0, 1, 1]]
