"""What is learned of candidates from the text that comes equals what plain Python counts again from all of it.

Run: pytest tests/property/test_union_learning.py
"""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.path_sets import pool_rows
from support.strategies import candidate_trees

from tspec.core.tree import CandidateTrees
from tspec.proposers.acceptance import (
    ALONE,
    GROUP_BOUNDS,
    MAX_DEPTH,
    SHARED,
    first_classes,
    know_nothing,
    start_text,
)
from tspec.proposers.acceptance_rows import (
    CLASS_MEMORY,
    LEAST,
    MOST,
    PRIOR_WEIGHT,
    TEXT_MEMORY,
    TEXT_WEIGHT,
    judge_rows,
)
from tspec.proposers.pool import make_pool, ranked
from tspec.proposers.union_rows import merge_rows, start_rows, weigh_rows

NUM_SLOTS, VOCAB = 3, 3
PRIORS = [np.array([0.1, 0.3, 0.9], np.float32), np.array([0.2, 0.6], np.float32)]
SOURCES = [SimpleNamespace(priors=each) for each in PRIORS]
FIRST = first_classes(SOURCES)
seeds = st.integers(0, 1 << 32).map(np.random.default_rng)


def faded(values, memory):
    """The sum of values, of which each new one makes the others count a little less."""
    return sum(value * (1 - 1 / memory) ** age for age, value in enumerate(reversed(values)))


class PlainBooks:
    """Every judgement that was ever made, in order."""

    def __init__(self):
        self.of_class = defaultdict(list)  # (class, is shared) -> is right
        self.of_text = defaultdict(list)  # (slot, source, group) -> (is right, what was expected)
        self.of_depth = defaultdict(list)  # (source, slot, depth) -> is hit

    def prior(self, number):
        return float(np.concatenate(PRIORS)[number])

    def estimate(self, number, is_shared):
        prior = min(1, self.prior(number) * (SHARED if is_shared else ALONE))
        judged = self.of_class[number, is_shared]
        weight = faded([1] * len(judged), CLASS_MEMORY) + PRIOR_WEIGHT
        return (faded(judged, CLASS_MEMORY) + PRIOR_WEIGHT * prior) / weight

    def text(self, slot, number):
        source = 1 if number >= FIRST[1] else 0
        return self.of_text[slot, source, sum(self.prior(number) > bound for bound in GROUP_BOUNDS)]

    def factor(self, slot, number):
        text = self.text(slot, number)
        right, expected = (faded([each[part] for each in text], TEXT_MEMORY) for part in (0, 1))
        return (right + TEXT_WEIGHT) / (expected + TEXT_WEIGHT)

    def chance(self, slot, classes):
        says = [
            self.estimate(number, len(classes) > 1) * self.factor(slot, number) for number in classes.values()
        ]
        return min(MOST, max(LEAST, sum(says) / len(says)))

    def judge(self, row, slot, text):
        """`row` is {path: {source: class}}."""
        for length in range(1, len(text) + 1):
            path, here = tuple(text[:length]), {}
            for other, classes in row.items():
                if other[:-1] == path[:-1]:
                    here[other] = classes
                    for number in classes.values():
                        self.learn(slot, number, len(classes) > 1, other == path)
            for source in {source for classes in here.values() for source in classes}:
                self.of_depth[source, slot, min(length, MAX_DEPTH)].append(source in here.get(path, {}))
            if path not in row:
                return

    def learn(self, slot, number, is_shared, is_right):
        self.text(slot, number).append((is_right, self.estimate(number, is_shared)))
        self.of_class[number, is_shared].append(is_right)

    def start(self, slot):
        for book in (self.of_text, self.of_depth):
            for key in [key for key in book if slot == key[0 if book is self.of_text else 1]]:
                del book[key]


@st.composite
def rounds(draw):
    """Some rounds: the trees of both sources, the slot of each row, and what comes to each text."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        num_rows, generator = draw(st.integers(1, NUM_SLOTS)), draw(seeds)
        shape = {"min_rows": num_rows, "max_rows": num_rows, "vocab": VOCAB}
        each = [draw(candidate_trees(**shape)) for _ in SOURCES]
        evidence = [
            generator.integers(0, len(PRIORS[source]), trees.tokens.shape).astype(np.int32)
            for source, trees in enumerate(each)
        ]
        slots = generator.permutation(NUM_SLOTS)[:num_rows].astype(np.int32)
        ended = generator.permutation(NUM_SLOTS)[: generator.integers(0, 2)]
        found.append((each, evidence, slots, ended, generator))
    return found


def pooled(each, evidence, slots):
    pool = make_pool(len(slots), len(SOURCES))
    start_rows(pool, slots)
    for source, (trees, numbers) in enumerate(zip(each, evidence, strict=True)):
        given_trees = CandidateTrees(trees.tokens, trees.parents, trees.num_nodes, evidence=numbers)
        merge_rows(pool, ranked(given_trees), FIRST[source], source)
    return pool


def come(pool, generator):
    """A row of tokens a text, some along its tree; and rows in another order, one of them perhaps unknown."""
    order = generator.permutation(len(pool.counts)).astype(np.int32)
    texts = []
    for row in pool_rows(pool, len(order)):
        start = [(), *row][generator.integers(0, len(row) + 1)]
        texts.append([*start, *generator.integers(0, VOCAB, 2).tolist()])
    width = max(map(len, texts))
    tokens = np.array([texts[row] + [0] * (width - len(texts[row])) for row in order], dtype=np.int32)
    counts = np.array([len(texts[row]) for row in order], dtype=np.int32)
    rows = np.where(generator.random(len(order)) < 0.9, order, -1).astype(np.int32)
    return order, rows, tokens, counts


@settings(max_examples=60, deadline=None)
@given(rounds())
def test_estimates_factors_and_depths_are_those_of_plain_books(found):
    known, books = know_nothing(SOURCES), PlainBooks()
    for slot in range(NUM_SLOTS):
        known = start_text(known, slot)
    for each, evidence, slots, ended, generator in found:
        for slot in ended.tolist():
            known = start_text(known, slot)
            books.start(slot)
        pool = pooled(each, evidence, slots)
        weigh_rows(pool, known, slots)
        given_by = pool_rows(pool, len(slots))
        for row, slot in enumerate(slots.tolist()):
            chances = [books.chance(slot, classes) for classes in given_by[row].values()]
            assert pool.chances[row, 1 : pool.counts[row]].tolist() == pytest.approx(chances)
        order, rows, tokens, counts = come(pool, generator)
        judge_rows(known, pool, rows, slots[order], tokens, counts)
        for place, row in enumerate(rows.tolist()):
            if row >= 0:
                books.judge(given_by[row], int(slots[row]), tokens[place, : counts[place]].tolist())
    check_books(known, books)


def check_books(known, books):
    for number in range(len(known.estimates)):
        for is_shared in (False, True):
            estimate = books.estimate(number, is_shared)
            assert known.estimates[number, int(is_shared)] == pytest.approx(estimate)
        for slot in range(NUM_SLOTS):
            assert known.factors[slot, known.groups[number]] == pytest.approx(books.factor(slot, number))
    for source in range(len(SOURCES)):
        for slot in range(NUM_SLOTS):
            for depth in range(1, MAX_DEPTH + 1):
                judged = books.of_depth[source, slot, depth]
                assert known.depth_hits[source, slot, depth] == pytest.approx(faded(judged, TEXT_MEMORY))
                trials = faded([1] * len(judged), TEXT_MEMORY)
                assert known.depth_trials[source, slot, depth] == pytest.approx(trials)


def test_one_proposer_alone_starts_at_its_own_priors():
    known = know_nothing(SOURCES[:1])
    assert known.estimates == pytest.approx(np.stack([PRIORS[0]] * 2, axis=1))


def test_a_class_forgets_what_was_long_ago():
    """Right ten thousand times, then wrong five thousand times."""
    known = start_text(know_nothing(SOURCES), 0)
    pool = make_pool(1, len(SOURCES))
    start_rows(pool, np.zeros(1, np.int32))
    pool.counts[0], pool.tokens[0, 1], pool.parents[0, 1], pool.classes[0, 1] = 2, 7, 0, [2, -1]
    zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    found = []
    for token, count in ((7, 10_000), (8, 5000)):
        for _ in range(count):
            judge_rows(known, pool, zero, zero, np.array([[token]], np.int32), one)
        found.append(known.estimates[2, 0])
    assert found[0] > 0.99 and found[1] < 0.1
