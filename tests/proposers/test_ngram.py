"""What the n-gram proposer proposes.

Run: python -m pytest tests/proposers/test_ngram.py
"""

import pytest
from support.proposing import ask, candidates_after, decode_greedily, int32, ngram_proposer, tell

from tspec.core.errors import ConfigError

END_OF_SEQUENCE = 2


def test_continuation_of_the_last_tokens_is_proposed():
    assert candidates_after([5, 6, 7, 8, 9, 10, 11, 7, 8]) == [9, 10, 11]


def test_text_without_end_of_sequence_decodes_as_plain():
    prompt, output = [5, 6, 7, 8, 9, 10, 11, 7, 8], [9, 10, 11, 7, 8, 9, 10, 12]
    assert decode_greedily(ngram_proposer(), prompt, output)[0] == output


def test_end_of_sequence_is_proposed_like_any_token_and_refused_like_any():
    prompt, output = [7, 8, END_OF_SEQUENCE, 9, 7], [8, 3, 7, 8, END_OF_SEQUENCE]
    assert candidates_after([*prompt, 8]) == [END_OF_SEQUENCE, 9, 7]
    emitted, judged, accepted = decode_greedily(ngram_proposer(), prompt, output)
    assert emitted == output
    assert (judged, accepted) == (3, 0)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_prompt_shorter_than_the_minimum_gets_the_root_alone(length):
    assert candidates_after([4] * length, of=ngram_proposer(minimum=3)) == []


def test_empty_prompt_gets_the_root_alone():
    of = ngram_proposer()
    of.admit(0, int32())
    assert ask(of, 0, 9) == []


def test_minimum_above_the_maximum_is_an_error_at_start():
    with pytest.raises(ConfigError, match="prompt_lookup_min: got 4, need at most prompt_lookup_max"):
        ngram_proposer(minimum=4, maximum=3)


def test_longest_match_wins_over_a_later_shorter_one():
    prompt = [1, 2, 3, 50, 51, 52, 9, 2, 3, 60, 61, 62, 1, 2, 3]
    assert candidates_after(prompt) == [50, 51, 52, 9, 2]
    assert candidates_after(prompt, of=ngram_proposer(maximum=2)) == [60, 61, 62]


@pytest.mark.parametrize(("occurrence", "expected"), [("latest", [60, 1, 2]), ("earliest", [50, 1, 2])])
def test_equal_matches_go_to_the_occurrence_asked_for(occurrence, expected):
    assert candidates_after([1, 2, 50, 1, 2, 60, 1, 2], of=ngram_proposer(occurrence=occurrence)) == expected


@pytest.mark.parametrize("occurrence", ["latest", "earliest"])
def test_one_token_repeated_is_continued_to_full_length(occurrence):
    assert candidates_after([7] * 50, of=ngram_proposer(occurrence=occurrence)) == [7] * 5


def test_periodic_text_is_continued_past_its_own_end():
    of = ngram_proposer(count=11)
    assert candidates_after([1, 2, 3] * 4, of=of) == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]


def test_no_match_means_no_candidate_and_no_filler():
    assert candidates_after([1, 2, 3, 4, 5]) == []


@pytest.mark.parametrize(("match", "expected"), [(1, 1), (2, 3), (3, 5), (4, 7), (5, 8)])
def test_number_of_candidates_grows_with_the_match(match, expected):
    ngram_tokens = list(range(100, 100 + match))
    prompt = [*ngram_tokens, *range(1, 20), *ngram_tokens]
    assert candidates_after(prompt, of=ngram_proposer(minimum=1, count=8)) == list(range(1, expected + 1))
    always = ngram_proposer(minimum=1, count=8, grows_with_match=False)
    assert candidates_after(prompt, of=always) == list(range(1, 9))


@pytest.mark.parametrize("max_nodes", [1, 2, 3, 6, 7])
def test_budget_of_a_row_is_kept(max_nodes):
    assert candidates_after([7] * 50, max_nodes) == [7] * min(max_nodes - 1, 5)


def test_generated_tokens_are_searched_too():
    of = ngram_proposer()
    assert candidates_after([1, 2, 3], of=of) == []
    tell(of, 0, 40, 41, 42)
    tell(of, 0, 40)
    tell(of, 0, 41)
    assert ask(of, 0, 41) == [42, 40, 41]


def test_refused_candidates_leave_nothing_behind():
    of = ngram_proposer()
    assert candidates_after([1, 2, 3, 1, 2], of=of) == [3, 1, 2]
    tell(of, 0, 9)
    assert ask(of, 0, 9) == []
    tell(of, 0, 3)
    assert ask(of, 0, 3) == []
