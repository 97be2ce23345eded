"""The trees of several proposers become one, as plain Python makes it: paths merged, the best candidates, the books.

Run: pytest tests/property/test_union_choice.py
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.path_sets import paths_of, pool_rows, rows_of
from support.strategies import candidate_trees

from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.proposers.pool import POOL_NODES, make_pool, ranked
from tspec.proposers.tally_rows import Sourced, tally_rows
from tspec.proposers.union_rows import PassPrices, choose_nodes, merge_rows, start_rows, write_trees

VOCAB = 4
NUM_CLASSES = 5
"""Of each source."""
seeds = st.integers(0, 1 << 32).map(np.random.default_rng)


def with_evidence(trees, generator):
    evidence = generator.integers(0, NUM_CLASSES, trees.tokens.shape).astype(np.int32)
    return CandidateTrees(trees.tokens, trees.parents, trees.num_nodes, evidence=evidence)


@st.composite
def given_trees(draw, max_rows=3, max_nodes=12, vocab=VOCAB):
    """Trees of one to three sources for the same rows."""
    rows, generator = draw(st.integers(1, max_rows)), draw(seeds)
    shape = {"min_rows": rows, "max_rows": rows, "max_nodes": max_nodes, "vocab": vocab}
    each = draw(st.lists(candidate_trees(**shape), min_size=1, max_size=3))
    return [with_evidence(trees, generator) for trees in each]


def merged(each):
    """A pool of all trees; the classes of a source follow those of the one before."""
    rows = len(each[0].num_nodes)
    pool = make_pool(rows, len(each))
    start_rows(pool, np.arange(rows, dtype=np.int32))
    for source, trees in enumerate(each):
        merge_rows(pool, ranked(trees), source * NUM_CLASSES, source)
    return pool


def merged_paths(each, row):
    """The same, of one row, as {path: {source: class}}."""
    found = {}
    for source, trees in enumerate(each):
        for path, evidence in rows_of(trees, trees.evidence)[row].items():
            has_room = path in found or len(found) + 1 < POOL_NODES
            if has_room and (len(path) == 1 or path[:-1] in found):
                found.setdefault(path, {})[source] = source * NUM_CLASSES + evidence
    return found


@settings(max_examples=150, deadline=None)
@given(given_trees())
def test_merging_is_the_union_of_paths(each):
    pool = merged(each)
    rows = len(pool.counts)
    assert pool_rows(pool, rows) == [merged_paths(each, row) for row in range(rows)]
    assert pool.tokens[:, 0].tolist() == list(range(rows))


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_what_finds_no_room_is_left_out_with_all_below(generator):
    each = [with_evidence(wide_tree(generator), generator) for _ in range(3)]
    pool = merged(each)
    assert pool.counts.tolist() == [POOL_NODES]
    assert pool_rows(pool, 1) == [merged_paths(each, 0)]


def wide_tree(generator):
    """As large a tree as there is, of tokens that hardly come twice."""
    tokens = generator.integers(0, 10_000, (1, MAX_NODES)).astype(np.int32)
    parents = np.array([[-1, *(generator.integers(0, node) for node in range(1, MAX_NODES))]], np.int32)
    return CandidateTrees(tokens, parents, np.array([MAX_NODES], np.int32))


@st.composite
def choices(draw):
    """A pool with chances, limits and prices. Chances are sixteenths, as equal ones have to come."""
    pool, generator = merged(draw(given_trees())), draw(seeds)
    rows = len(pool.counts)
    pool.chances[:] = generator.integers(0, 17, pool.chances.shape) / 16
    pool.is_chosen[:] = True  # of the round before
    pool.gains[:] = 7
    limits = generator.integers(1, 20, rows).astype(np.int32)
    rises = draw(st.sampled_from([[0], [1], [0, 0, 0, 9], [0, 1, 2, 3]]))
    prices = PassPrices(
        generator.integers(0, 200, rows).astype(np.int32),
        1 + np.cumsum(generator.choice(rises, 1000)),
        np.cumsum(generator.choice([0, 0, 1e-3], MAX_NODES + 1)),
        draw(st.sampled_from([0, 0, 5])),
        draw(st.sampled_from([0.0, 0.05, 0.2, 0.5])),
        draw(st.booleans()),
    )
    return pool, limits, prices


def scores_of(pool, row):
    """The chance of each path, if the chances of those with a parent in common may together be one at most."""
    paths = paths_of(pool.tokens[row], pool.parents[row], int(pool.counts[row]))
    scores, left = {(): 1.0}, Counter({(): 1.0})
    for node, path in enumerate(paths[1:], start=1):
        above = path[:-1]
        chance = min(pool.chances[row, node], left[above])
        left[above] -= chance
        scores[path], left[path] = chance * scores[above], 1.0
    return scores


def prefixes(pool, limits):
    """Every choice that takes the likeliest so far, as lists of (row, path), and what each promises."""
    ranked_all = [
        (-score, row, number, path)
        for row in range(len(limits))
        for number, (path, score) in enumerate(scores_of(pool, row).items())
        if number and score > 0
    ]
    taken, expected = [], 0.0
    yield list(taken), expected
    for negative, row, _, path in sorted(ranked_all):
        has_parent = len(path) == 1 or (row, path[:-1]) in taken
        if has_parent and sum(each[0] == row for each in taken) + 1 < limits[row]:
            taken.append((row, path))
            expected -= negative
            yield list(taken), expected


def seconds_of(taken, prices, rows):
    counts = [1 + sum(each[0] == row for each in taken) for row in range(rows)]
    total = sum(counts) + prices.num_beside
    if prices.is_padded:
        total = bucket_size(rows) * bucket_size(max(counts))
    per_token = prices.context_s[counts]
    return float(prices.node_s[total] + (prices.contexts * per_token).sum())


def bucket_size(count):
    return 1 << (count - 1).bit_length()


@settings(max_examples=300, deadline=None)
@given(choices())
def test_the_choice_is_the_best_prefix_of_the_likeliest_candidates(choice):
    pool, limits, prices = choice
    rows = len(limits)
    gain, pass_s, plain_s = choose_nodes(pool, limits, prices)
    assert plain_s == pytest.approx(seconds_of([], prices, rows))
    gains = {}
    for taken, expected in prefixes(pool, limits):
        seconds = seconds_of(taken, prices, rows)
        gains[frozenset(taken)] = (expected - prices.rate * (seconds - plain_s), seconds)
    assert gain == pytest.approx(max(each[0] for each in gains.values()), abs=1e-9)
    taken = chosen(pool, rows)
    assert gains[taken] == pytest.approx((gain, pass_s))
    for row in range(rows):
        mine = [path for other, path in taken if other == row]
        assert len(mine) < limits[row]
        assert pool.gains[row] == pytest.approx(sum(scores_of(pool, row)[path] for path in mine))
        assert pool.gains[row] <= max([0, *map(len, mine)]) + 1e-9  # a level's candidates share one chance


def chosen(pool, rows):
    """(row, path) of all that is marked."""
    return frozenset(
        (row, path)
        for row in range(rows)
        for node, path in enumerate(paths_of(pool.tokens[row], pool.parents[row], int(pool.counts[row])))
        if node and pool.is_chosen[row, node]
    )


def test_candidates_of_one_parent_share_its_chance():
    """Three that seem as good as sure: together they bring one token, not three."""
    tokens, parents = np.array([[9, 1, 2, 3]], np.int32), np.array([[-1, 0, 0, 0]], np.int32)
    trees = CandidateTrees(tokens, parents, np.array([4], np.int32), evidence=np.zeros((1, 4), np.int32))
    pool = merged([trees])
    pool.chances[0, 1:4] = 0.75
    node_s, context_s = np.ones(100), np.zeros(MAX_NODES + 1)
    prices = PassPrices(np.zeros(1, np.int32), node_s, context_s, 0, 1.0, False)
    choose_nodes(pool, np.array([9], np.int32), prices)
    assert pool.gains[0] == 1.0
    assert pool.is_chosen[0, :4].tolist() == [False, True, True, False]


@settings(max_examples=150, deadline=None)
@given(choices())
def test_written_trees_are_what_was_chosen(choice):
    pool, limits, prices = choice
    rows, num_sources = len(limits), pool.classes.shape[2]
    choose_nodes(pool, limits, prices)
    tokens, parents, sources = np.full((3, rows, MAX_NODES), -7, dtype=np.int32)
    num_nodes = np.zeros(rows, dtype=np.int32)
    width = write_trees(pool, tokens, parents, sources, num_nodes)
    trees = CandidateTrees(tokens, parents, num_nodes, sources=sources)
    trees.check()
    assert width == num_nodes.max()
    assert (num_nodes <= limits).all()
    assert tokens[:, 0].tolist() == list(range(rows))
    written = rows_of(trees, sources)
    assert {(row, path) for row in range(rows) for path in written[row]} == chosen(pool, rows)
    given_by = pool_rows(pool, rows)
    for row in range(rows):
        for path, bits in written[row].items():
            assert [source for source in range(num_sources) if bits >> source & 1] == [*given_by[row][path]]


@st.composite
def told(draw):
    """Trees with sources, and texts that came to some of their rows; what came often follows a path."""
    trees, generator = draw(candidate_trees()), draw(seeds)
    rows = len(trees.num_nodes)
    sources = generator.integers(1, 8, trees.tokens.shape).astype(np.int32)
    sources[:, 0] = 0
    order = generator.permutation(rows)
    came = [draw_text(rows_of(trees, sources)[row], generator) for row in order]
    is_known = generator.random(rows) < 0.8
    return trees, sources, np.where(is_known, order, -1).astype(np.int32), came


def draw_text(paths, generator):
    start = [(), *paths][generator.integers(0, len(paths) + 1)]
    return [*start, *generator.integers(0, VOCAB + 1, generator.integers(0, 3)).tolist()] or [0]


def as_arrays(came):
    counts = np.array([len(text) for text in came], dtype=np.int32)
    tokens = np.zeros((len(came), counts.max()), dtype=np.int32)
    for place, text in enumerate(came):
        tokens[place, : len(text)] = text
    return tokens, counts


@settings(max_examples=150, deadline=None)
@given(told())
def test_tallies_are_plain_counts(case):
    trees, sources, rows, came = case
    tallies, saved = np.zeros((3, 3), dtype=np.int64), np.zeros(3)
    given_trees = Sourced(trees.tokens, trees.parents, trees.num_nodes, sources)
    tally_rows(tallies, saved, given_trees, rows, *as_arrays(came))
    by_path = rows_of(trees, sources)
    expected, parts = np.zeros((3, 3)), np.zeros(3)
    for row, text in zip(rows.tolist(), came, strict=True):
        if row >= 0:
            right = [by_path[row][path] for path in beginnings(text) if path in by_path[row]]
            for source in range(3):
                mine = [bits for bits in by_path[row].values() if bits >> source & 1]
                accepted = [bits for bits in right if bits >> source & 1]
                expected[source] += (bool(mine), len(mine), len(accepted))
                parts[source] += sum(1 / bits.bit_count() for bits in accepted)
    assert tallies.tolist() == expected.tolist()
    assert saved == pytest.approx(parts)


def beginnings(text):
    return [tuple(text[:length]) for length in range(1, len(text) + 1)]
