"""Trees from a draft's levels are the best nodes of all levels, as brute force finds them.

Run: pytest tests/proposers/test_growth.py
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspec.core.tree import NO_PARENT
from tspec.proposers.growth import Level, best_trees, read_levels

GONE = -np.inf


def random_levels(seed, rows, depth, width, most, *, steps=None):
    """Levels as a draft's program makes them: of each, the best `width` candidates go on.

    steps   scores are whole multiples of one over so many, so that many are equal
    """
    random = np.random.default_rng(seed)
    levels, above = [], np.zeros((rows, 1), np.float32)
    for _ in range(depth):
        shape = (rows, above.shape[1], most)
        logprobs = -random.exponential(1.0, shape).astype(np.float32)
        if steps is not None:
            logprobs = np.round(logprobs * steps) / np.float32(steps)
        logprobs[random.random(shape) < 0.2] = GONE
        tokens = random.integers(0, 50, shape).astype(np.int32)
        scores = above[:, :, None] + logprobs
        flat = scores.reshape(rows, -1)
        next_from = np.argsort(-flat, axis=1, kind="stable")[:, :width].astype(np.int32)
        levels.append(Level(tokens, scores, next_from))
        above = np.take_along_axis(flat, next_from, axis=1)
    return levels


def brute_force(root, levels, row, max_nodes):
    """(tokens, parents) of one row: every candidate with its own path, the best of them in their order."""
    found, on_level = [], [()]
    for level in levels:
        paths = [
            (*parent, (number, rank))
            for number, parent in enumerate(on_level)
            for rank in range(level.tokens.shape[2])
        ]
        for path in paths:
            number, rank = path[-1]
            score = level.scores[row, number, rank]
            if score > GONE:
                found.append((score, path, int(level.tokens[row, number, rank])))
        on_level = [paths[place] for place in level.next_from[row]]
    best = sorted(range(len(found)), key=lambda place: -found[place][0])[
        : max_nodes - 1
    ]  # of equals, the first
    nodes = [((), root), *(found[place][1:] for place in sorted(best))]
    number_of = {path: node for node, (path, _) in enumerate(nodes)}
    parents = [NO_PARENT, *(number_of[path[:-1]] for path, _ in nodes[1:])]
    return [token for _, token in nodes], parents


def check_against_brute_force(levels, roots, max_nodes):
    trees = best_trees(np.array(roots, np.int32), levels, np.array(max_nodes, np.int32))
    for row, (root, most) in enumerate(zip(roots, max_nodes, strict=True)):
        tokens, parents = brute_force(root, levels, row, most)
        count = int(trees.num_nodes[row])
        assert count == len(tokens) <= most
        assert trees.tokens[row, :count].tolist() == tokens
        assert trees.parents[row, :count].tolist() == parents
        assert set(trees.tokens[row, count:].tolist()) <= {0}
        assert set(trees.parents[row, count:].tolist()) <= {NO_PARENT}
    return trees


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 1 << 32),
    max_nodes=st.lists(st.integers(1, 64), min_size=1, max_size=4),
    depth=st.integers(1, 6),
    width=st.integers(1, 5),
    most=st.integers(1, 5),
    steps=st.sampled_from((None, 1, 2)),
)
def test_trees_are_those_of_brute_force(seed, max_nodes, depth, width, most, steps):
    width = min(width, most)  # a level has as many nodes as the first one gives
    levels = random_levels(seed, len(max_nodes), depth, width, most, steps=steps)
    check_against_brute_force(levels, list(range(90, 90 + len(max_nodes))), max_nodes)


def level(tokens, scores, next_from):
    return Level(
        np.array([tokens], np.int32), np.array([scores], np.float32), np.array([next_from], np.int32)
    )


def grow(levels, most):
    trees = best_trees(np.array([9], np.int32), levels, np.array([most], np.int32))
    count = int(trees.num_nodes[0])
    return list(zip(trees.tokens[0, 1:count].tolist(), trees.parents[0, 1:count].tolist(), strict=True))


TWO_LEVELS = [
    level([[1, 2]], [[-1.0, -3.0]], [0, 1]),
    level([[3, 4], [5, 6]], [[-1.5, -4.0], [-3.0, -9.0]], [0, 2]),
]


@pytest.mark.parametrize(
    ("most", "nodes"),
    [
        (1, []),
        (2, [(1, 0)]),
        (3, [(1, 0), (3, 1)]),
        (4, [(1, 0), (2, 0), (3, 1)]),  # 2 and 5 are equal: the first of them
        (5, [(1, 0), (2, 0), (3, 1), (5, 2)]),
        (64, [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]),
    ],
)
def test_the_best_nodes_are_kept_and_parents_come_first(most, nodes):
    assert grow(TWO_LEVELS, most) == nodes


def test_a_certain_child_is_as_good_as_its_parent_and_never_there_without_it():
    levels = [level([[1]], [[-1.0]], [0]), level([[2]], [[-1.0]], [0]), level([[3]], [[-1.0]], [0])]
    assert [grow(levels, most) for most in (2, 3, 4)] == [
        [(1, 0)],
        [(1, 0), (2, 1)],
        [(1, 0), (2, 1), (3, 2)],
    ]


def test_candidates_that_are_not_there_leave_a_smaller_tree():
    """A draft with fewer tokens than a node may have candidates; and one that has none at all."""
    levels = [
        level([[1, -1, -1]], [[-1.0, GONE, GONE]], [0, 1, 2]),
        level([[2, 3, -1], [7] * 3, [7] * 3], [[-2.0, -5.0, GONE], [GONE] * 3, [GONE] * 3], [0, 1, 2]),
    ]
    assert grow(levels, 64) == [(1, 0), (2, 1), (3, 1)]
    assert grow([level([[-1, -1]], [[GONE, GONE]], [0, 1])], 64) == []


def test_broken_numbers_of_a_draft_are_no_candidates():
    levels = [level([[1, 2]], [[-1.0, np.nan]], [0, 1]), level([[3], [4]], [[-2.0], [np.nan]], [0, 1])]
    assert grow(levels, 64) == [(1, 0), (3, 1)]


def test_levels_are_read_by_name_and_rows_that_are_not_there_are_left_out():
    levels = random_levels(3, 4, depth=2, width=2, most=2)
    outputs = {
        f"level{number}.{name}": getattr(each, name)
        for number, each in enumerate(levels)
        for name in ("tokens", "scores", "next_from")
    }
    read = read_levels(outputs, depth=2, rows=3)
    for one, whole in zip(read, levels, strict=True):
        assert np.array_equal(one.tokens, whole.tokens[:3])
        assert np.array_equal(one.scores, whole.scores[:3])
        assert np.array_equal(one.next_from, whole.next_from[:3])
