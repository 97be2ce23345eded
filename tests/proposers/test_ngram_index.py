"""The native index: where an n-gram occurred before, and what the arrays hold meanwhile.

Run: python -m pytest tests/proposers/test_ngram_index.py
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tspec.proposers import ngram_index
from tspec.proposers.ngram_index import CURSOR, ENTRIES, append_rows, propose_rows

CAPACITY = 16
UNDER_BOUNDS_CHECK = """
import numpy as np
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.proposer import Committed, DraftBatch
from tspec.proposers.ngram import NgramProposer

random = np.random.default_rng(0)
proposer = NgramProposer(SpeculativeConfig(prompt_lookup_min=1, num_speculative_tokens=63))
slots = np.arange(3, dtype=np.int32)
last = np.full(3, 7, dtype=np.int32)
for slot in slots:
    proposer.admit(int(slot), np.full(50, 7, dtype=np.int32))
for count in [1, 5, 64, 1000, 3000] * 2:
    trees = proposer.propose(DraftBatch(slots, last, np.full(3, 64, dtype=np.int32)))
    assert trees.num_nodes.tolist() == [12, 12, 12] or last.tolist() != [7, 7, 7]
    tokens = random.integers(0, 3, (3, count), dtype=np.int32)
    proposer.observe(Committed(slots, tokens, np.full(3, count, dtype=np.int32), slots))
    last = tokens[:, -1]
print("in bounds")
"""


class Index:
    """Two slots of CAPACITY tokens side by side."""

    def __init__(self, min_match=2, max_match=3, *, keeps_latest=True):
        self.lookup = (min_match, max_match, keeps_latest)
        self.text = np.zeros(2 * CAPACITY, dtype=np.int32)
        self.table = np.zeros(2 * CAPACITY * ENTRIES * (max_match - min_match + 1), dtype=np.int32)
        self.cursors = np.zeros(2, dtype=CURSOR)
        self.cursors["start"] = [0, CAPACITY]
        self.cursors["capacity"] = CAPACITY

    def append(self, *rows, slots=(0, 1), first_row=0):
        tokens = np.zeros((len(rows), max(map(len, rows))), dtype=np.int32)
        for row, each in enumerate(rows):
            tokens[row, : len(each)] = each
        counts = np.array([len(each) for each in rows], dtype=np.int32)
        slots = np.array(slots[: len(rows)], dtype=np.int32)
        state = (self.text, self.table, self.cursors)
        return append_rows(*state, slots, tokens, counts, first_row, *self.lookup)

    def match(self, slot=0):
        return int(self.cursors[slot]["match"]), int(self.cursors[slot]["after"])


def test_longest_match_and_the_position_after_it_are_known_after_each_token():
    index = Index()
    found = []
    for token in [5, 6, 7, 5, 6, 7, 5]:
        index.append([token])
        found.append(index.match())
    assert found == [(0, 0), (0, 0), (0, 0), (0, 0), (2, 2), (3, 3), (3, 4)]


@pytest.mark.parametrize(("keeps_latest", "after"), [(True, 5), (False, 2)])
def test_ties_go_to_the_occurrence_asked_for(keeps_latest, after):
    index = Index(keeps_latest=keeps_latest)
    index.append([5, 6, 1, 5, 6, 2, 5, 6][:5])
    index.append([2, 5, 6])
    assert index.match() == (2, after)


def test_matches_may_overlap_the_suffix():
    index = Index()
    index.append([4, 4, 4])
    assert index.match() == (2, 2)


def test_slots_do_not_see_each_other():
    index = Index()
    index.append([5, 6, 7], [1, 2, 3])
    index.append([1, 2], [5, 6])
    assert (index.match(0), index.match(1)) == ((0, 0), (0, 0))


def test_full_text_is_left_as_it_was_and_its_row_returned():
    index = Index()
    assert index.append([1] * 3, [2] * CAPACITY) == 2
    assert index.append([1] * 3, [2]) == 1
    assert index.cursors["length"].tolist() == [6, CAPACITY]
    assert index.append([1] * 3, [2], first_row=1) == 1
    assert index.cursors["length"].tolist() == [6, CAPACITY]


def test_rows_of_slots_not_in_use_are_passed_over():
    index = Index()
    index.cursors[1]["capacity"] = 0
    assert index.append([1], [2], [3], [4], slots=(1, 7, -1, 0)) == 4
    assert index.cursors["length"].tolist() == [1, 0]
    assert index.text[0] == 4


def test_colliding_hashes_cost_probes_and_no_wrong_match():
    """Fill a slot's table to its limit: each n-gram gets an entry of that table, also where probing wraps."""
    random = np.random.default_rng(0)
    for _ in range(50):
        index = Index(min_match=1, max_match=1)
        index.append(random.choice(50_000, CAPACITY, replace=False).tolist())
        assert index.match() == (0, 0)
        entries = index.table.reshape(2, CAPACITY * ENTRIES)
        assert sorted(entries[0].tolist())[-CAPACITY:] == list(range(1, CAPACITY + 1))
        assert not entries[1].any()


def test_negative_and_largest_ids_are_ordinary_tokens():
    index = Index()
    index.append([-1, 2**31 - 1, 0, -1, 2**31 - 1])
    assert index.match() == (2, 2)


def test_root_that_does_not_end_the_text_is_named():
    index = Index()
    index.append([1, 2, 3], [4, 5, 6])
    outputs = np.zeros((1, 2, 4), dtype=np.int32)
    args = [np.array(each, dtype=np.int32) for each in ([0, 1], [3, 5], [4, 4])]
    most = np.array([0, 1, 3, 5], dtype=np.int64)
    state = (index.text, index.cursors)
    assert (
        propose_rows(outputs[0], outputs[0].copy(), outputs[0].copy(), args[0].copy(), *state, *args, most)
        == 1
    )


def test_nothing_reads_or_writes_outside_its_arrays(tmp_path):
    """Compile with Numba's bounds checks, in a process and a cache of their own; texts grow several times."""
    root = str(Path(ngram_index.__file__).parents[2])
    checks = {"NUMBA_BOUNDSCHECK": "1", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", UNDER_BOUNDS_CHECK], env=os.environ | checks, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("in bounds\n", "")
