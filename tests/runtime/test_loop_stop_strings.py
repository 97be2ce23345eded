"""Stop strings inside rounds of several tokens: text, ids and log-probabilities end at the same place.

Run: pytest tests/runtime/test_loop_stop_strings.py
"""

import pytest
from support.engines import Oracle, build, finish, num_held, with_proposer
from support.table_model import table_checkpoint

from tspec.core.sampling_params import SamplingParams
from tspec.runtime.sequence import FinishReason
from tspec.runtime.text import OutputText

VOCAB, EOS = 128, 100
START = 32
TEXT = "".join(map(chr, range(START + 1, VOCAB)))
"""What the model says after START: a token a character, each the one after the last."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    table_checkpoint(folder, {}, vocab=VOCAB, eos_token_id=EOS)
    return folder


@pytest.fixture(scope="module")
def plain(folder):
    engine = build(folder)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=["none", "oracle"])
def engine(request, plain):
    """The oracle has all 12 candidates of a round accepted."""
    known = [list(range(start, VOCAB)) for start in range(VOCAB)]
    return plain if request.param == "none" else with_proposer(plain, Oracle(known), max_candidates=12)


def decode(ids):
    return "".join(map(chr, ids))


def run(engine, **params):
    """One sequence, and what of its text was given out after each round."""
    asked = SamplingParams(**{"max_tokens": 60} | params)
    text = OutputText(
        decode,
        stops=asked.stop,
        includes_stop=asked.include_stop_str_in_output,
        min_tokens=asked.min_tokens,
    )
    sequence, pieces = engine.add([START], asked, text=text), []
    while sequence.finish_reason is None:
        engine.step()
        pieces.append(text.take())
    assert num_held(engine) == {"blocks": 0, "running": 0, "waiting": 0}
    return sequence, pieces


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("start", [0, 1, 6, 10, 11, 12, 13, 14, 18, 23, 24, 25, 26])
def test_a_stop_string_ends_a_round_wherever_it_is(engine, start, length):
    """In two rounds of 13: at their beginning, middle and end, and across both."""
    stop = TEXT[start : start + length]
    sequence, pieces = run(engine, stop=stop, logprobs=0)
    end = start + length
    assert decode(sequence.output_ids) == TEXT[:end]
    assert [each.token_id for each in sequence.logprobs] == sequence.output_ids
    assert "".join(pieces) == sequence.text.text == TEXT[:start]
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, stop)
    assert sequence.stats.num_emitted == end


def test_of_two_stop_strings_in_a_round_the_one_that_comes_first_counts(engine):
    sequence, _ = run(engine, stop=[TEXT[9:11], TEXT[4:6]])
    assert (sequence.text.text, sequence.stop_reason) == (TEXT[:4], TEXT[4:6])
    assert len(sequence.output_ids) == 6


def test_a_stop_string_that_is_included_is_the_end_of_the_text(engine):
    sequence, pieces = run(engine, stop=TEXT[4:6], include_stop_str_in_output=True)
    assert "".join(pieces) == sequence.text.text == TEXT[:6] == decode(sequence.output_ids)


def test_the_prompt_is_no_part_of_a_stop_string(engine):
    sequence, _ = run(engine, stop=[chr(START), chr(START) + TEXT[0]], max_tokens=5)
    assert (sequence.text.text, sequence.finish_reason) == (TEXT[:5], FinishReason.LENGTH)
    assert sequence.stop_reason is None


def test_min_tokens_counts_from_the_first_token(engine):
    """A stop string that is complete with the last of them does not count, nor does a later place where none is."""
    sequence, _ = run(engine, stop=[TEXT[3:5], TEXT[8]], min_tokens=5)
    assert (sequence.text.text, sequence.stop_reason) == (TEXT[:8], TEXT[8])
    sequence, _ = run(engine, stop=[TEXT[3:5], TEXT[8]], min_tokens=4)
    assert (sequence.text.text, sequence.stop_reason) == (TEXT[:3], TEXT[3:5])


def test_what_may_begin_a_stop_string_comes_out_when_the_text_ends(engine):
    sequence, pieces = run(engine, stop=TEXT[3:6], max_tokens=5)
    assert "".join(pieces) == sequence.text.text == TEXT[:5]
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.LENGTH, None)


@pytest.mark.parametrize(("is_included", "more"), [(False, ""), (True, TEXT[4])])
def test_stop_tokens_are_told_from_stop_strings_and_ends_of_sequence(engine, is_included, more):
    sequence, _ = run(
        engine, stop="no", stop_token_ids=[ord(TEXT[4])], include_stop_str_in_output=is_included
    )
    assert (sequence.text.text, sequence.stop_reason) == (TEXT[:4] + more, ord(TEXT[4]))
    sequence, _ = run(engine, stop="no", max_tokens=90)
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, None)
    assert sequence.output_ids[-1] == EOS


def test_requests_of_one_batch_stop_each_at_its_own_place(engine):
    stops = [TEXT[start : start + 2] for start in (0, 7, 12, 13, 25)]
    sequences = [
        engine.add([START], SamplingParams(stop=stop, max_tokens=60), text=OutputText(decode, stops=[stop]))
        for stop in stops
    ]
    finish(engine)
    assert [each.text.text for each in sequences] == [TEXT[: TEXT.index(stop)] for stop in stops]
