"""What the suffix proposer proposes, and what it says for it.

Run: python -m pytest tests/proposers/test_suffix.py
"""

import numpy as np
import pytest
from support.proposing import (
    ask,
    ask_tree,
    candidates_after,
    decode_greedily,
    int32,
    ngram_proposer,
    suffix_proposer,
    tell,
)

from tspec.core.proposer import Committed, DraftBatch, RankedProposer
from tspec.proposers.suffix_growth import NUM_CLASSES, NUM_MATCHES, NUM_SHARES, OWN, RESPONSES, class_of

ONCE, MORE = 3, 4
"""Shares of the classes where nothing else ever followed."""


def test_it_says_what_speaks_for_its_candidates():
    for proposer, num_classes in ((suffix_proposer(), NUM_CLASSES), (ngram_proposer(), 16)):
        assert isinstance(proposer, RankedProposer)
        assert proposer.priors.dtype == np.float32
        assert proposer.priors.shape == (num_classes,)
        assert (proposer.priors >= 0).all() and (proposer.priors < 1).all()


@pytest.mark.parametrize(
    ("match", "expected"), [(1, 0), (2, 1), (4, 3), (5, 4), (6, 4), (7, 5), (9, 5), (10, 6)]
)
def test_classes_tell_matches_apart(match, expected):
    assert class_of(OWN, match, 1, 1) == expected * NUM_SHARES + ONCE
    assert class_of(RESPONSES, match, 2, 2) == (NUM_MATCHES + expected) * NUM_SHARES + MORE


@pytest.mark.parametrize(
    ("count", "total", "expected"),
    [(1, 5, 0), (1, 4, 1), (1, 3, 1), (1, 2, 2), (8, 9, 2), (9, 10, 4), (1, 1, 3), (2, 2, 4)],
)
def test_classes_tell_shares_apart(count, total, expected):
    assert class_of(OWN, 1, count, total) == expected


def test_continuation_of_the_last_tokens_is_proposed():
    of = suffix_proposer()
    assert candidates_after([5, 6, 7, 8, 9, 10, 11, 7, 8], 4, of=of) == [9, 10, 11]
    assert list(ask_tree(of, 0, 8, max_nodes=4)) == [(9,), (9, 10), (9, 10, 11)]


def test_evidence_is_the_length_of_the_match_and_the_share():
    of = suffix_proposer()
    of.admit(0, int32(1, 2, 3, 4, 9, 1, 2, 3))
    two = [class_of(OWN, match, 1, 1) for match in (3, 4)]
    assert list(ask_tree(of, 0, 3, max_nodes=3).values()) == two


def test_what_followed_more_often_comes_first_and_the_latest_of_equals():
    of = suffix_proposer()
    of.admit(0, int32(1, 5, 2, 1, 6, 3, 1, 7, 4, 1, 6, 8, 1))
    assert list(ask_tree(of, 0, 1, max_nodes=2)) == [(6,)]
    of.admit(1, int32(1, 5, 2, 1, 6, 3, 1, 7, 4, 1))
    of.priors = np.ones(NUM_CLASSES, dtype=np.float32)
    assert list(ask_tree(of, 1, 1, max_nodes=2)) == [(7,)]


def test_a_longer_match_is_believed_more_than_a_frequent_continuation():
    of = suffix_proposer()
    of.admit(0, int32(1, 2, 3, 50, 3, 60, 3, 60, 3, 60, 1, 2, 3))
    assert next(iter(ask_tree(of, 0, 3))) == (50,)


def test_alternatives_become_siblings():
    of = suffix_proposer(max_candidates=8)
    of.admit(0, int32(1, 2, 5, 1, 2, 6, 1, 2))
    assert {(5,), (6,)} <= ask_tree(of, 0, 2).keys()


def test_a_node_has_at_most_four_children():
    of = suffix_proposer(max_candidates=30)
    of.priors = np.ones(NUM_CLASSES, dtype=np.float32)
    of.admit(0, int32(*(each for other in range(10, 20) for each in (1, 2, 3, other)), 1, 2, 3))
    for first in range(20, 30):
        of.learn(int32(1, 2, 3, first))
    assert sum(len(path) == 1 for path in ask_tree(of, 0, 3)) == 4


@pytest.mark.parametrize("match", [1, 2, 3, 9])
def test_number_of_candidates_grows_with_the_match(match):
    of = suffix_proposer(max_candidates=20)
    of.priors = np.ones(NUM_CLASSES, dtype=np.float32)
    ngram_tokens = list(range(100, 100 + match))
    of.admit(0, int32(*ngram_tokens, *range(1, 40), *ngram_tokens))
    assert len(ask_tree(of, 0, ngram_tokens[-1])) == min(20, 3 * match)


@pytest.mark.parametrize("max_nodes", [1, 2, 3, 6, 8, 12])
def test_budget_of_a_row_is_kept(max_nodes):
    assert candidates_after([7] * 50, max_nodes, of=suffix_proposer()) == [7] * min(max_nodes - 1, 8)


def test_no_match_means_no_candidate_and_no_filler():
    assert candidates_after([1, 2, 3, 4, 5], of=suffix_proposer()) == []


def test_empty_prompt_gets_the_root_alone():
    of = suffix_proposer()
    of.admit(0, int32())
    assert ask(of, 0, 9) == []


def test_unlikely_paths_are_left_out():
    of = suffix_proposer(max_candidates=63)
    of.priors = np.full(NUM_CLASSES, 0.3, dtype=np.float32)
    assert candidates_after([7] * 50, of=of) == [7, 7]


def test_periodic_text_is_continued_past_its_own_end():
    assert candidates_after([1, 2, 3] * 4, of=suffix_proposer(11)) == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]


def test_text_decodes_as_plain():
    prompt, output = [5, 6, 7, 8, 9, 10, 11, 7, 8], [9, 10, 11, 7, 8, 9, 10, 12]
    emitted, judged, accepted = decode_greedily(suffix_proposer(), prompt, output)
    assert emitted == output
    assert accepted > 0 and judged >= accepted


def test_negative_and_largest_ids_are_ordinary_tokens():
    assert candidates_after([-1, 2**31 - 1, 0, -1, 2**31 - 1], 3, of=suffix_proposer()) == [0, -1]


def test_refused_candidates_leave_nothing_behind():
    of = suffix_proposer()
    assert candidates_after([1, 2, 3, 1, 2], of=of)[0] == 3
    tell(of, 0, 9)
    assert ask(of, 0, 9) == []


def test_asking_twice_gives_the_same_answer_in_other_memory():
    of = suffix_proposer()
    of.admit(0, int32(*[7] * 9))
    batch = DraftBatch(int32(0), int32(7), int32(9))
    one, other = of.propose(batch), of.propose(batch)
    np.testing.assert_array_equal(one.tokens, other.tokens)
    assert not np.shares_memory(one.tokens, other.tokens)


def test_root_out_of_step_with_the_text_is_our_bug_and_said_so():
    of = suffix_proposer()
    of.admit(0, int32(1, 2, 3))
    with pytest.raises(AssertionError, match="row 0: root 4 does not end slot 0"):
        of.propose(DraftBatch(int32(0), int32(4), int32(9)))


def test_other_integer_types_and_strides_are_accepted():
    of = suffix_proposer()
    of.admit(0, [7] * 9)
    tokens = np.full((1, 8), 7, dtype=np.int64)[:, ::2]
    of.observe(Committed(np.array([0]), tokens, np.array([4]), np.array([3])))
    trees = of.propose(DraftBatch(np.array([0]), np.array([7]), np.array([3])))
    assert trees.tokens[0, :3].tolist() == [7, 7, 7]
