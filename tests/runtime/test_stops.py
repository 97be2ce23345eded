"""Stop strings in a text that grows character by character or in larger pieces.

Run: pytest tests/runtime/test_stops.py
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.runtime.stops import StopMatcher

LETTERS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def find_first(text, stops, ignored=0):
    """(end, start, stop) of the stop string that is complete first, of those the longest; None for none."""
    found = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and start + len(stop) > ignored
    ]
    return min(found, default=None)


def longest_beginning(text, stops):
    """Characters at the end of the text that a stop string begins with, and goes on after."""
    return max(
        (size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])),
        default=0,
    )


@given(pieces=st.lists(LETTERS, max_size=4), stops=STOPS, ignored=st.integers(0, 8))
def test_the_first_match_is_found_in_whatever_pieces_the_text_comes(pieces, stops, ignored):
    matcher, text = StopMatcher(stops, ignored), ""
    for piece in pieces:
        match, text = matcher.push(piece), text + piece
        expected = find_first(text, stops, ignored)
        assert match == (expected and (expected[2], expected[1], expected[0]))
        if match is not None:
            return
        assert matcher.length == len(text)
        assert matcher.num_held == longest_beginning(text, stops)


@pytest.mark.parametrize(
    ("text", "stops", "match"),
    [
        ("say it now", ["now", "it"], ("it", 4, 6)),
        ("abcd", ["abcd", "bc"], ("bc", 1, 3)),
        ("abc", ["bc", "abc"], ("abc", 0, 3)),
        ("aab", ["ab"], ("ab", 1, 3)),
        ("grüße 🙂", ["🙂", "ß!"], ("🙂", 6, 7)),
        ("ababac", ["abac"], ("abac", 2, 6)),
        ("nothing", ["thin.", "ng "], None),
    ],
)
def test_of_several_stop_strings_the_one_that_is_complete_first_counts(text, stops, match):
    assert StopMatcher(stops).push(text) == match
    assert StopMatcher(stops[::-1]).push(text) == match


def test_a_stop_string_that_begins_with_another_never_counts():
    assert StopMatcher(["ab", "a"]).push("ab") == ("a", 0, 1)


def test_text_that_cannot_become_a_stop_string_is_not_held():
    matcher = StopMatcher(["###", "\n\n"])
    held = []
    for character in "a##b#\n":
        matcher.push(character)
        held.append(matcher.num_held)
    assert held == [0, 1, 2, 0, 1, 1]


def test_a_match_that_is_passed_over_may_be_the_beginning_of_another():
    matcher = StopMatcher(["aba"], ignored=4)
    assert matcher.push("aba") is None
    assert matcher.push("ba") == ("aba", 2, 5)


def test_a_fork_leaves_the_matcher_where_it_was():
    matcher = StopMatcher(["abc"])
    matcher.push("xa")
    fork = matcher.fork()
    assert fork.push("bc") == ("abc", 1, 4)
    assert (matcher.length, matcher.num_held) == (2, 1)
    assert matcher.push("b-") is None


def test_many_long_stop_strings_cost_a_text_no_more_than_one():
    """The worst case of a search that starts again at each character: all of it is a beginning."""
    stops = [f"{'a' * 2000}{end}" for end in "bcdefgh"]
    matcher = StopMatcher(stops)
    assert matcher.push("a" * 50_000) is None
    assert matcher.num_held == 2000
    assert matcher.push("g") == (stops[5], 48_000, 50_001)


@pytest.mark.parametrize(
    ("stop", "kept"), [("END", ("END",)), (["a", "b"], ("a", "b")), ((), ()), (None, ()), ("é🙂", ("é🙂",))]
)
def test_one_stop_string_may_be_given_bare(stop, kept):
    assert SamplingParams(stop=stop).stop == kept


@pytest.mark.parametrize(("stop", "got"), [("", "''"), (["a", ""], "''"), ([5], "5"), (b"a", "97"), (3, "3")])
def test_a_stop_string_that_is_no_text_or_empty_is_refused(stop, got):
    with pytest.raises(ConfigError, match=f"^stop: got {got}, need texts that are not empty"):
        SamplingParams(stop=stop)
