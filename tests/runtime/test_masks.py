"""Mask rows by hand: bad words, stop tokens that come early, constraints that refuse or fail, and what is then said.

Run: pytest tests/runtime/test_masks.py
"""

import numpy as np
import pytest

from tspec.core.constraint import token_bits
from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.core.shapes import mask_words
from tspec.core.tree import NO_PARENT
from tspec.runtime.masks import TokenMasks

VOCAB = 40
STOP = 39
CHAIN = [NO_PARENT, 0, 1, 2]


class Alternating:
    """A constraint and its state: tokens are even and odd in turn. Fails after `fatal`; refuses `refused`."""

    def __init__(self, fatal=None, refused=None):
        self.fatal, self.refused, self.taken = fatal, refused, []

    def start(self, vocab_size, stop_ids):
        assert vocab_size == VOCAB
        return Alternating(self.fatal, self.refused)

    def fill_mask(self, mask):
        if self.fatal is not None and self.fatal in self.taken:
            raise ConfigError("constraint", got="too much", need="less", fix="Simplify it.")
        mask[:] = token_bits(VOCAB, range(len(self.taken) % 2, VOCAB, 2))

    def advance(self, token):
        if token == self.refused or token % 2 != len(self.taken) % 2:
            return False
        self.taken.append(token)
        return True

    def take_back(self, count):
        assert 0 <= count <= len(self.taken)
        self.taken = self.taken[: len(self.taken) - count]


def make(**params):
    return TokenMasks(SamplingParams(**params), frozenset({STOP}), VOCAB)


def tokens_of(row):
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def filled(masks, text, candidates=(), parents=CHAIN, num_output=0):
    """The allowed tokens of each node; `text` ends with the root."""
    count = 1 + len(candidates)
    nodes = np.array([text[-1], *candidates], dtype=np.int32)
    mask = np.empty((count, mask_words(VOCAB)), dtype=np.int32)
    masks.fill(mask, text, num_output, nodes, np.array(parents[:count], dtype=np.int32), count)
    return [tokens_of(row) for row in mask]


def forbidden(masks, text, candidates=(), **more):
    return [sorted({*range(VOCAB)} - {*row}) for row in filled(masks, text, candidates, **more)]


def test_the_lowest_bit_is_the_first_token_and_bits_past_the_vocabulary_are_0():
    assert token_bits(VOCAB, [0, 31, 33]).tolist() == [1 | -(1 << 31), 2]
    assert token_bits(VOCAB, None).tolist() == [-1, 255]
    assert token_bits(VOCAB, [VOCAB, 10**9]).tolist() == [0, 0]
    assert filled(make(bad_words=[[3]]), [1]) == [[token for token in range(VOCAB) if token != 3]]


def test_padding_is_left_as_it_was():
    mask = np.full((3, mask_words(VOCAB)), 77, dtype=np.int32)
    nodes = np.array([1, 2, -1], dtype=np.int32)
    make(allowed_token_ids=[4]).fill(mask, [1], 0, nodes, np.array([NO_PARENT, 0, NO_PARENT], np.int32), 2)
    assert mask.tolist() == [[16, 0], [16, 0], [77, 77]]


def test_only_allowed_tokens_may_come():
    assert filled(make(allowed_token_ids=[33, 5, 5]), [1], [2]) == [[5, 33]] * 2


def test_a_bad_word_of_one_token_never_comes():
    assert forbidden(make(bad_words=[[7], [38]]), [7], [38, 7]) == [[7, 38]] * 3


def test_a_bad_word_may_begin_in_the_prompt_and_on_the_path():
    masks = make(bad_words=[[1, 2, 3]])
    assert forbidden(masks, [9, 1], [2, 3, 1]) == [[], [3], [], []]
    assert forbidden(masks, [1, 2], [1, 2]) == [[3], [], [3]]
    assert forbidden(masks, [1, 9], [2]) == [[], []]


def test_a_bad_word_longer_than_the_text_does_not_match():
    masks = make(bad_words=[[1] * 6])
    assert forbidden(masks, [1], [1, 1]) == [[]] * 3
    assert forbidden(masks, [1, 1, 1], [1, 1]) == [[], [], [1]]


def test_bad_words_that_overlap_or_begin_alike_all_count():
    masks = make(bad_words=[[1, 2], [1, 2, 3], [2, 3], [2, 3, 4], [1, 2, 5], [1, 2]])
    assert forbidden(masks, [1], [2, 3]) == [[2], [3, 5], [4]]


def test_siblings_have_masks_of_their_own():
    masks = make(bad_words=[[1, 2, 3], [1, 4, 5]])
    assert forbidden(masks, [1], [2, 4], parents=[NO_PARENT, 0, 0]) == [[], [3], [5]]


def test_stop_tokens_wait_for_min_tokens_at_each_depth():
    masks = make(min_tokens=3)
    stops = [[STOP], [STOP], [], [STOP]]
    assert forbidden(masks, [1], [2, 3, 4], parents=[NO_PARENT, 0, 1, 0], num_output=1) == stops
    assert forbidden(masks, [1], [2], num_output=3) == [[], []]


def test_a_constraint_is_followed_down_each_path_and_back():
    masks = make(constraint=Alternating(), bad_words=[[5]])
    tree = {"candidates": [0, 2, 1, 3, 4, 5, 6], "parents": [NO_PARENT, 0, 0, 1, 2, 3, 1, 6]}
    even, odd = list(range(0, VOCAB, 2)), [token for token in range(1, VOCAB, 2) if token != 5]
    expected = [
        even,
        odd,
        odd,
        even,
        even,
        odd,
        [],
        [],
    ]  # the last two: 5 is a bad word, and what is below it
    assert filled(masks, [9], **tree) == expected
    assert filled(masks, [9], **tree) == expected
    masks.commit([0, 1, 2])
    assert filled(masks, [9, 0, 1, 2], [4, 3]) == [odd, [], []]


def test_a_constraint_that_fails_on_a_candidate_does_no_harm_elsewhere():
    masks = make(constraint=Alternating(fatal=2), allowed_token_ids=[0, 1, 2, 3])
    tree = {"candidates": [2, 0, 1], "parents": [NO_PARENT, 0, 0, 1]}
    assert filled(masks, [9], **tree) == [[0, 2], [], [1, 3], []]
    assert masks.why_no_token([9], 0) is None
    masks.commit([0])
    assert filled(masks, [9, 0], [1, 2]) == [[1, 3], [0, 2], []]


def test_a_constraint_that_fails_on_the_text_says_why():
    masks = make(constraint=Alternating(fatal=2))
    masks.commit([2])
    assert filled(masks, [9, 2], [1]) == [[], []]
    assert str(masks.why_no_token([9, 2], 1)) == "constraint: got too much, need less. Simplify it."
    masks.commit([4])  # nothing more is asked of it
    assert filled(masks, [9, 2, 4]) == [[]]


def test_a_constraint_that_refuses_what_it_allows_is_an_error_of_the_request():
    masks = make(constraint=Alternating(refused=4))
    assert filled(masks, [9], [4, 1]) == [list(range(0, VOCAB, 2)), [], []]
    masks.commit([4])
    assert filled(masks, [9, 4]) == [[]]
    assert "token 4 refused" in str(masks.why_no_token([9, 4], 1))


def test_what_leaves_no_token_is_named():
    masks = make(constraint=Alternating(), allowed_token_ids=[1, 2], bad_words=[[9, 2]], min_tokens=1)
    assert filled(masks, [9]) == [[]]
    assert (
        "after 0 tokens allowed_token_ids and bad_words and min_tokens (1) and the constraint leave none"
        in str(masks.why_no_token([9], 0))
    )
    assert masks.why_no_token([8], 0) is None
    assert "after 1 tokens allowed_token_ids and bad_words and the constraint leave none" in str(
        masks.why_no_token([9], 1)
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"allowed_token_ids": [3, 4], "bad_words": [[3], [4]]},
            "allowed_token_ids and bad_words leave none",
        ),
        ({"allowed_token_ids": [STOP], "min_tokens": 2}, r"min_tokens \(2\) leave none"),
        ({"bad_words": ["text"]}, "bad_words: got 'text', need token ids"),
    ],
)
def test_what_cannot_be_said_at_all_is_refused_at_once(params, message):
    with pytest.raises(ConfigError, match=message):
        make(**params)
