"""Slots, batches, memory and compilation of the n-gram proposer.

Run: python -m pytest tests/proposers/test_ngram_slots.py
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.proposing import ask, candidates_after, decode_greedily, int32, ngram_proposer, tell

from tspec.core.proposer import Committed, DraftBatch
from tspec.proposers import ngram, ngram_index

COUNT_COMPILED = """
from tspec.core.speculative_config import SpeculativeConfig
from tspec.proposers import ngram_index
from tspec.proposers.ngram import NgramProposer
NgramProposer(SpeculativeConfig(num_speculative_tokens=5)).warm_up()
print(sum(each.stats.cache_misses.total() for each in (ngram_index.append_rows, ngram_index.propose_rows)))
"""


def test_each_row_of_a_batch_has_its_own_budget_and_text():
    of = ngram_proposer()
    of.admit(3, int32(*[7] * 9))
    of.admit(1, int32(1, 2, 3, 1, 2))
    of.admit(0, int32(1, 2, 3))
    trees = of.propose(DraftBatch(int32(1, 0, 3, 3), int32(2, 3, 7, 7), int32(9, 9, 9, 2)))
    trees.check()
    assert trees.num_nodes.tolist() == [4, 1, 6, 2]
    assert trees.tokens.tolist() == [[2, 3, 1, 2, 0, 0], [3, 0, 0, 0, 0, 0], [7] * 6, [7, 7, 0, 0, 0, 0]]
    assert trees.parents[0].tolist() == [-1, 0, 1, 2, -1, -1]
    assert trees.evidence.tolist() == [[0, 2, 3, 4, 0, 0], [0] * 6, [0, 6, 7, 8, 9, 10], [0, 6, 0, 0, 0, 0]]


def test_evidence_of_long_matches_is_the_last_class():
    of = ngram_proposer(maximum=6, count=15)
    of.admit(0, int32(*[7] * 9))
    trees = of.propose(DraftBatch(int32(0), int32(7), int32(16)))
    assert trees.evidence[0].tolist() == [0, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 15, 0, 0, 0, 0]


def test_empty_batch_gets_empty_trees():
    trees = ngram_proposer().propose(DraftBatch(int32(), int32(), int32()))
    assert trees.tokens.shape == (0, 6)


def test_asking_twice_gives_the_same_answer_in_other_memory():
    of = ngram_proposer()
    of.admit(0, int32(*[7] * 9))
    batch = DraftBatch(int32(0), int32(7), int32(9))
    one, other = of.propose(batch), of.propose(batch)
    np.testing.assert_array_equal(one.tokens, other.tokens)
    assert not np.shares_memory(one.tokens, other.tokens)
    assert not np.shares_memory(one.tokens, one.parents)


def test_slot_used_again_starts_empty():
    of = ngram_proposer()
    assert candidates_after([1, 2, 3, 1, 2], of=of) == [3, 1, 2]
    of.release(0)
    assert candidates_after([4, 1, 2], of=of) == []
    assert candidates_after([5, 1, 2], of=of) == []


def test_unknown_slots_are_ignored_everywhere_but_in_admit():
    of = ngram_proposer()
    of.release(0)
    of.release(5)
    of.admit(1, int32(7, 7, 7))
    tell(of, 0, 1, 2)
    tell(of, 9, 1, 2)
    assert ask(of, 0, 2) == []
    assert ask(of, 9, 2) == []
    assert ask(of, 1, 7) == [7, 7, 7]


def test_root_out_of_step_with_the_text_is_our_bug_and_said_so():
    of = ngram_proposer()
    of.admit(0, int32(1, 2, 3))
    with pytest.raises(AssertionError, match="row 0: root 4 does not end slot 0"):
        of.propose(DraftBatch(int32(0), int32(4), int32(9)))


def test_long_texts_grow_and_short_ones_beside_them_stay():
    of, random = ngram_proposer(), np.random.default_rng(0)
    of.admit(0, int32(1, 2, 3, 1, 2))
    long = random.integers(100, 200, 3 * ngram.MIN_CAPACITY_TOKENS).tolist()
    of.admit(1, int32(*long[:3]))
    for start in range(3, len(long), 100):
        tell(of, 1, *long[start : start + 100])
    tell(of, 1, *long[500:509])
    assert ask(of, 1, long[508]) == long[509:514]
    assert ask(of, 0, 2) == [3, 1, 2]


def test_thousand_short_requests_leave_no_memory_behind():
    of = ngram_proposer()
    for number in range(1000):
        of.admit(number % 4, int32(number, 1, 2))
    for slot in range(4):
        of.release(slot)
    assert len(of._text) <= 8 * ngram.MIN_CAPACITY_TOKENS
    assert of._regions.end == 0


def test_other_integer_types_and_strides_are_accepted():
    of = ngram_proposer()
    of.admit(0, [7] * 9)
    tokens = np.full((1, 8), 7, dtype=np.int64)[:, ::2]
    of.observe(Committed(np.array([0]), tokens, np.array([4]), np.array([3])))
    trees = of.propose(DraftBatch(np.array([0]), np.array([7]), np.array([3])))
    assert trees.tokens[0, :3].tolist() == [7, 7, 7]


def test_warm_up_leaves_nothing_to_compile():
    of = ngram_proposer()
    of.warm_up()
    functions = (ngram_index.append_rows, ngram_index.propose_rows)
    before = [len(each.signatures) for each in functions]
    decode_greedily(of, [1, 2, 3, 1, 2], [3, 1, 2, 3, 1, 2] * 400)
    assert [len(each.signatures) for each in functions] == before


def test_second_process_warms_up_without_compiling_and_without_home(tmp_path):
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    root = str(Path(ngram.__file__).parents[2])
    places = {"HOME": "/dev/null", "TMPDIR": str(tmp_path)}
    paths = {"PYTHONPATH": os.pathsep.join([root, kept.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", COUNT_COMPILED]
    compiled = [
        int(subprocess.run(command, env=kept | places | paths, capture_output=True, check=True).stdout)
        for _ in range(2)
    ]
    assert compiled == [2, 0]
