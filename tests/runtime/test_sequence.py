"""A sequence takes tokens one by one through the checks of plain decoding, and counts what happened.

Run: pytest tests/runtime/test_sequence.py
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence_of

from tspec.runtime.sequence import FinishReason, SequenceStats

PROMPT = [5, 9, 5]
TOKENS = st.lists(st.integers(0, 9), max_size=30)


@settings(deadline=None)
@given(
    TOKENS,
    st.lists(st.integers(1, 8), min_size=1, max_size=30),
    st.integers(1, 20),
    st.sets(st.integers(0, 9)),
)
def test_a_text_is_the_same_in_runs_of_any_length(text, lengths, max_tokens, stops):
    """Runs against one token at a time, both until they end."""
    single, in_runs = (sequence_of(PROMPT, max_tokens=max_tokens, stops=tuple(stops)) for _ in range(2))
    for token in text:
        if single.finish_reason is None:
            assert single.commit([token]) == 1
    start = 0
    for length in lengths * len(text):
        run = text[start : start + length]
        if run and in_runs.finish_reason is None:
            emitted = in_runs.commit(run)
            assert 1 <= emitted <= len(run)
            assert emitted == len(run) or in_runs.finish_reason is not None
            start += emitted
    assert in_runs.tokens == single.tokens
    assert in_runs.finish_reason is single.finish_reason
    assert in_runs.stats.num_emitted == single.stats.num_emitted == single.num_output


def test_a_stop_is_the_last_token_and_what_follows_is_dropped():
    sequence = sequence_of(PROMPT, stops=(7,))
    assert sequence.commit([1, 7, 2, 7]) == 2
    assert sequence.output_ids == [1, 7]
    assert sequence.finish_reason is FinishReason.STOP


def test_a_stop_in_the_prompt_ends_nothing():
    sequence = sequence_of(PROMPT, stops=(5, 9))
    assert sequence.finish_reason is None
    sequence.commit([1])
    assert sequence.finish_reason is None


def test_the_length_ends_a_text_and_a_stop_at_the_same_token_wins():
    sequence = sequence_of(PROMPT, max_tokens=2, stops=(7,))
    sequence.commit([1, 2, 3])
    assert (sequence.output_ids, sequence.finish_reason) == ([1, 2], FinishReason.LENGTH)
    sequence = sequence_of(PROMPT, max_tokens=2, stops=(7,))
    sequence.commit([1, 7, 3])
    assert (sequence.output_ids, sequence.finish_reason) == ([1, 7], FinishReason.STOP)


def test_outputs_and_what_remains_are_counted_from_the_prompt():
    sequence = sequence_of(PROMPT, max_tokens=5)
    sequence.commit([1, 2])
    assert (sequence.num_output, sequence.num_remaining) == (2, 3)
    assert sequence.output_from(1) == [2]
    assert sequence.output_from(2) == []
    assert sequence.tokens == [*PROMPT, 1, 2]


def test_times_are_those_of_the_first_and_the_last_token():
    sequence = sequence_of(PROMPT, max_tokens=3)
    assert sequence.stats.time_to_first_token_s is None
    assert sequence.stats.tokens_per_second is None
    sequence.commit([1])
    first = sequence.stats.first_token_s
    assert first is not None and sequence.stats.end_s is None
    assert sequence.stats.decode_s == 0
    sequence.commit([2, 3])
    assert sequence.stats.first_token_s == first
    assert sequence.stats.end_s >= first
    sequence.stats.end_s = first + 0.5
    assert sequence.stats.tokens_per_second == 4
    assert sequence.stats.time_to_first_token_s == first - sequence.stats.start_s


def test_the_speed_of_a_single_token_is_none():
    sequence = sequence_of(PROMPT, max_tokens=1)
    sequence.commit([1])
    assert sequence.stats.tokens_per_second is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 6).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most)))))
def test_counters_add_up_passes(passes):
    """(candidates, accepted) of each pass; counts by position are those of chains."""
    stats = SequenceStats()
    for num_candidates, num_accepted in passes:
        stats.add_pass(num_candidates, num_accepted)
    assert stats.num_passes == len(passes)
    assert stats.num_drafts == sum(candidates > 0 for candidates, _ in passes)
    assert stats.num_candidates == sum(stats.candidates_by_position)
    assert stats.num_accepted == sum(stats.accepted_by_position) == sum(accepted for _, accepted in passes)
    longest = max((candidates for candidates, _ in passes), default=0)
    assert len(stats.candidates_by_position) == len(stats.accepted_by_position) == longest
    for position, (proposed, taken) in enumerate(
        zip(stats.candidates_by_position, stats.accepted_by_position, strict=True)
    ):
        assert proposed == sum(candidates > position for candidates, _ in passes)
        assert taken == sum(accepted > position for _, accepted in passes)
    assert stats.acceptance_rate is None or 0 <= stats.acceptance_rate <= 1


@pytest.mark.parametrize(
    ("emitted", "passes", "mean"), [(0, 0, None), (1, 0, None), (7, 2, 3.0), (4, 3, 1.0)]
)
def test_the_first_token_belongs_to_no_verify_pass(emitted, passes, mean):
    stats = SequenceStats(num_passes=passes, num_emitted=emitted, num_from_prefill=1)
    assert stats.tokens_per_pass == mean
