"""Earlier responses: what is shared, what is forgotten, how much memory they take; many slots at once.

Run: python -m pytest tests/proposers/test_suffix_store.py
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.proposing import ANY, ask, ask_tree, int32, suffix_proposer, tell

from tspec.core.proposer import DraftBatch
from tspec.proposers import suffix, suffix_growth, suffix_trie
from tspec.proposers.suffix_growth import RESPONSES, class_of
from tspec.proposers.suffix_store import BYTES_PER_TOKEN, MIN_CAPACITY_TOKENS, ResponseStore
from tspec.proposers.suffix_trie import NODE, NODES_PER_TOKEN

UNDER_BOUNDS_CHECK = """
import numpy as np
from support.proposing import suffix_proposer
from tspec.core.proposer import Committed, DraftBatch

random = np.random.default_rng(0)
proposer = suffix_proposer(63, max_response_tokens=700)
slots = np.arange(3, dtype=np.int32)
for turn in range(4):
    for slot in slots.tolist():
        proposer.admit(slot, np.full(50, 7, dtype=np.int32))
    last = np.full(3, 7, dtype=np.int32)
    for count in (1, 5, 64, 600):
        trees = proposer.propose(DraftBatch(slots, last, np.full(3, 64, dtype=np.int32)))
        trees.check()
        tokens = random.integers(0, 3 + 50 * (turn % 2), (3, count), dtype=np.int32)
        proposer.observe(Committed(slots, tokens, np.full(3, count, dtype=np.int32), slots))
        last = tokens[:, -1].copy()
print("in bounds")
"""

NATIVE = (suffix_growth.grow_tree, suffix_trie.append_tokens, suffix_trie.remove_tokens)


def test_what_was_said_to_one_is_proposed_to_another():
    of = suffix_proposer()
    of.admit(0, int32(90))
    ask(of, 0, 90)
    tell(of, 0, 1, 2, 3, 4)
    of.admit(1, int32(80, 1, 2))
    assert ask(of, 1, 2) == []
    of.release(0)
    of.store.catch_up(ANY)
    assert ask_tree(of, 1, 2, max_nodes=2) == {(3,): class_of(RESPONSES, 2, 1, 1)}


def test_a_response_is_counted_over_the_next_rounds():
    of = suffix_proposer()
    of.admit(0, int32(90))
    ask(of, 0, 90)
    tell(of, 0, *range(1, 31))
    of.release(0)
    of.admit(1, int32(80))
    pending = []
    while of.store.num_waiting:
        pending.append(of.store.num_waiting)
        tell(of, 1, 81, 82)
    assert pending == [30, 24, 18, 12, 6]
    assert [each.tolist() for each in of.store.responses] == [list(range(1, 31))]


def test_those_that_wait_are_bounded_too_and_the_one_half_counted_stays():
    store = ResponseStore(12)
    store.learn(int32(1, 2, 3, 4))
    store.catch_up(2)
    for first in (10, 20, 30, 40):
        store.learn(int32(first, first + 1, first + 2, first + 3))
    assert store.num_waiting == 2 + 12
    store.catch_up(6)
    assert [each[0] for each in store.responses] == [1, 20]


def test_prompts_are_never_shared():
    of = suffix_proposer()
    of.admit(0, int32(1, 2, 3, 4, 5, 6))
    ask(of, 0, 6)
    tell(of, 0, 7, 8, 9)
    of.release(0)
    of.store.catch_up(ANY)
    assert [each.tolist() for each in of.store.responses] == [[7, 8, 9]]
    of.admit(1, int32(90, 5, 6))
    assert ask(of, 1, 6) == []


def test_a_response_that_wanted_no_candidates_is_not_learned():
    of = suffix_proposer()
    of.admit(0, int32(1, 2))
    assert ask(of, 0, 2, max_nodes=1) == []
    tell(of, 0, 3, 4)
    of.release(0)
    of.store.catch_up(ANY)
    assert of.store.responses == []


def test_a_sequence_that_is_admitted_again_counts_its_later_response_alone():
    of = suffix_proposer()
    of.admit(0, int32(1, 2))
    ask(of, 0, 2)
    tell(of, 0, 3, 4)
    of.release(0)
    of.admit(0, int32(1, 2, 3, 4))
    ask(of, 0, 4)
    tell(of, 0, 5, 6)
    of.release(0)
    of.store.catch_up(ANY)
    assert [each.tolist() for each in of.store.responses] == [[3, 4], [5, 6]]


def test_one_token_says_nothing_and_is_not_kept():
    store = ResponseStore(10)
    store.learn(int32(1))
    store.learn(int32())
    store.catch_up(ANY)
    assert store.responses == []


def test_a_response_longer_than_the_room_is_cut():
    store = ResponseStore(5)
    store.learn(int32(*range(9)))
    store.catch_up(ANY)
    assert [each.tolist() for each in store.responses] == [[0, 1, 2, 3, 4]]


def test_the_one_used_longest_ago_goes_first():
    of = suffix_proposer(max_response_tokens=12)
    for first in (10, 20, 30):
        of.learn(int32(*range(first, first + 4)))
    of.admit(0, int32(99, 10, 11, 12))
    assert ask(of, 0, 12) == [13]
    of.learn(int32(1, 2, 3, 4))
    assert [each[0] for each in of.store.responses] == [30, 10, 1]


def test_a_short_match_does_not_count_as_use():
    of = suffix_proposer(max_response_tokens=8)
    of.learn(int32(10, 11, 12, 13))
    of.learn(int32(20, 21, 22, 23))
    of.admit(0, int32(99, 10, 11))
    ask(of, 0, 11)
    assert [each[0] for each in of.store.responses] == [10, 20]


def test_forgotten_responses_are_proposed_no_more():
    of = suffix_proposer(max_response_tokens=6)
    of.learn(int32(1, 2, 3))
    of.learn(int32(4, 5, 6, 7, 8))
    of.admit(0, int32(9, 1, 2))
    assert ask(of, 0, 2) == []
    assert of.store.num_tokens == 6


def test_memory_stays_within_its_bound_over_100000_responses():
    """Neither tokens nor nodes leak: the arrays never grow, and nothing is left when all that is held goes."""
    store, random = ResponseStore(2000), np.random.default_rng(0)
    bound = BYTES_PER_TOKEN * 2048 + 4 * 6000
    lengths = random.integers(2, 9, 100_000)
    said = random.integers(0, 50, (100_000, 8), dtype=np.int32)
    for number, length in enumerate(lengths.tolist()):
        store.learn(said[number, :length])
        store.catch_up(5)
        assert store.num_tokens <= 2000
        assert store.num_waiting <= 2008
    assert store.num_bytes <= bound
    assert store._state["num_nodes"][0] <= NODES_PER_TOKEN * 2000
    assert store.num_tokens == 2000
    store.catch_up(store.num_waiting)
    store._forget(2000)
    assert (store.table == suffix_trie.NONE).all()


def test_bound_of_the_default_store_is_what_the_text_says():
    store = ResponseStore(suffix.MAX_RESPONSE_TOKENS)
    assert store.num_bytes == suffix.MAX_RESPONSE_TOKENS * BYTES_PER_TOKEN <= 63 * 2**20
    assert store.nodes.nbytes == suffix.MAX_RESPONSE_TOKENS * NODES_PER_TOKEN * NODE.itemsize


def test_thousand_requests_leave_no_texts_behind():
    of = suffix_proposer(max_response_tokens=100)
    for number in range(1000):
        of.admit(number % 4, int32(number, 1, 2))
        tell(of, number % 4, 3, 4, 5)
    assert of.num_texts == 4
    for slot in range(4):
        of.release(slot)
    assert of.num_texts == 0


def test_long_texts_grow_and_short_ones_beside_them_stay():
    of, random = suffix_proposer(5), np.random.default_rng(0)
    of.admit(0, int32(1, 2, 3, 1, 2))
    long = random.integers(100, 200, 3 * MIN_CAPACITY_TOKENS).tolist()
    of.admit(1, int32(*long[:3]))
    for start in range(3, len(long), 100):
        tell(of, 1, *long[start : start + 100])
    tell(of, 1, *long[500:509])
    assert ask(of, 1, long[508]) == long[509:514]
    assert ask(of, 0, 2)[0] == 3


def test_rows_of_a_batch_do_not_see_each_other():
    of = suffix_proposer(5)
    of.admit(3, int32(*[7] * 9))
    of.admit(1, int32(1, 2, 3, 1, 2))
    of.admit(0, int32(1, 2, 3))
    trees = of.propose(DraftBatch(int32(1, 0, 3, 3, 9), int32(2, 3, 7, 7, 4), int32(9, 9, 9, 2, 9)))
    trees.check()
    assert trees.num_nodes[[1, 2, 3, 4]].tolist() == [1, 6, 2, 1]
    assert trees.tokens[:, :2].tolist() == [[2, 3], [3, 0], [7, 7], [7, 7], [4, 0]]


def test_unknown_slots_are_ignored_everywhere_but_in_admit():
    of = suffix_proposer()
    of.release(5)
    tell(of, 9, 1, 2)
    assert ask(of, 9, 2) == []
    assert of.store.responses == []


@pytest.mark.parametrize("max_candidates", [1, 63])
def test_warm_up_leaves_nothing_to_compile(max_candidates):
    of = suffix_proposer(max_candidates, max_response_tokens=20)
    of.warm_up()
    before = [len(each.signatures) for each in NATIVE]
    of.admit(0, [1, 2, 3, 1, 2])
    for _ in range(200):
        ask(of, 0, 2)
        tell(of, 0, 3, 1, 2)
    of.release(0)
    of.learn(int32(1, 2, 3, 4))
    assert [len(each.signatures) for each in NATIVE] == before


def test_nothing_reads_or_writes_outside_its_arrays(tmp_path):
    """Compile with Numba's bounds checks, in a process and a cache of their own; texts grow, responses go."""
    root = Path(suffix.__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "tests")])
    checks = {"NUMBA_BOUNDSCHECK": "1", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", UNDER_BOUNDS_CHECK], env=os.environ | checks, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("in bounds\n", "")
