"""The committed tokens that a proposer reads again.

Run: pytest tests/proposers/test_texts.py
"""

import numpy as np
import pytest

from tspec.proposers.texts import MIN_CAPACITY_TOKENS, Text


def tokens(start, end):
    return np.arange(start, end, dtype=np.int32)


@pytest.mark.parametrize("length", [0, 1, MIN_CAPACITY_TOKENS, 3 * MIN_CAPACITY_TOKENS])
def test_a_text_holds_what_it_was_given_however_long_it_gets(length):
    text, end = Text(tokens(0, length)), length
    for count in (1, 5, 63, MIN_CAPACITY_TOKENS, 2 * MIN_CAPACITY_TOKENS, 0, 1):
        text.append(tokens(end, end + count))
        end += count
        assert text.length == end
        assert np.array_equal(text.tokens(0, end), tokens(0, end))
    assert text.tokens(end - 3, end).tolist() == [end - 3, end - 2, end - 1]
    assert text.tokens(end, end).tolist() == []


def test_a_text_is_a_copy():
    given = tokens(0, 3)
    text = Text(given)
    given[:] = 9
    assert text.tokens(0, 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("start", "end"), [(0, 4), (-1, 2), (2, 1)])
def test_what_is_not_there_is_not_read(start, end):
    with pytest.raises(AssertionError):
        Text(tokens(0, 3)).tokens(start, end)
