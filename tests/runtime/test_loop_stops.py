"""Where texts end, on a model whose text is known: stops inside accepted runs, and what the counters then say.

Run: pytest tests/runtime/test_loop_stops.py
"""

import json

import pytest
from support.engines import NGRAM, Oracle, TestProposer, build, run, with_proposer
from support.table_model import table_checkpoint

from tspec.runtime.sequence import FinishReason

VOCAB = 64
EOS = 30
"""After 29 the model says 30, and goes on with 31 where nothing stops it; after 63 comes 0."""
ALL = [list(range(start, VOCAB)) + list(range(VOCAB)) * 3 for start in range(VOCAB)]


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


@pytest.fixture(params=["none", "ngram", "oracle"])
def engine(request, folder, plain):
    if request.param == "none":
        yield plain
    elif request.param == "oracle":
        yield with_proposer(plain, Oracle(ALL), max_candidates=12)
    else:
        engine = build(folder, NGRAM)
        yield engine
        engine.close()


CYCLE = [*range(20, 40), *range(20, 24)]
"""A prompt that n-gram lookup continues past the end of sequence."""


@pytest.mark.parametrize("start", range(20, 30))
def test_an_end_of_sequence_inside_an_accepted_run_ends_the_text(engine, start):
    """Over all places of a round; the end of sequence is the last token, though the prompt has one, too."""
    prompt = [*range(20, 40), *range(20, start + 1)]
    (sequence,) = run(engine, prompt, max_tokens=50)
    assert sequence.output_ids == list(range(start + 1, EOS + 1))
    assert sequence.finish_reason is FinishReason.STOP


def test_an_end_of_sequence_may_be_ignored(engine):
    (sequence,) = run(engine, CYCLE, max_tokens=20, ignore_eos=True)
    assert sequence.output_ids == list(range(24, 44))
    assert sequence.finish_reason is FinishReason.LENGTH


def test_a_stop_token_ends_the_text_even_where_the_end_of_sequence_is_ignored(engine):
    (sequence,) = run(engine, CYCLE, max_tokens=20, ignore_eos=True, stop_token_ids=(50, 34))
    assert sequence.output_ids == list(range(24, 35))
    assert sequence.finish_reason is FinishReason.STOP


def test_the_first_of_several_stops_ends_the_text(engine):
    (sequence,) = run(engine, CYCLE, max_tokens=20, stop_token_ids=(29, 27, 28))
    assert sequence.output_ids == [24, 25, 26, 27]


@pytest.mark.parametrize("stop", [24, 25])
def test_the_first_tokens_may_be_the_stop(engine, stop):
    (sequence,) = run(engine, CYCLE, max_tokens=20, stop_token_ids=(stop,))
    assert sequence.output_ids == list(range(24, stop + 1))
    assert sequence.finish_reason is FinishReason.STOP


def test_a_stop_at_the_last_allowed_token_is_a_stop(engine):
    (sequence,) = run(engine, CYCLE, max_tokens=7)
    assert sequence.output_ids[-1] == EOS
    assert sequence.finish_reason is FinishReason.STOP
    (sequence,) = run(engine, CYCLE, max_tokens=6)
    assert sequence.finish_reason is FinishReason.LENGTH


def test_each_documented_end_of_sequence_ends_the_text(tmp_path):
    """One in config.json, two in generation_config.json."""
    table_checkpoint(tmp_path, {}, vocab=VOCAB, eos_token_id=EOS)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 50]}))
    engine = build(tmp_path)
    ends = [run(engine, [start], max_tokens=60)[0].output_ids[-1] for start in (2, 12, 33)]
    engine.close()
    assert ends == [9, EOS, 50]


class SaysStop(TestProposer):
    """Has the end of sequence as the first child of every root, and what is right as the second."""

    def grow(self, text, most):
        return [(0, EOS), (0, (text[-1] + 1) % VOCAB), (1, 0)][: most - 1]


def test_a_proposed_end_of_sequence_ends_nothing(plain):
    engine = with_proposer(plain, SaysStop())
    (sequence,) = run(engine, [33], max_tokens=40)
    assert sequence.output_ids == [*range(34, VOCAB), *range(10)]
    assert sequence.stats.num_accepted > 10


def test_a_text_that_ends_in_a_run_counts_only_what_it_emitted(plain):
    """The end of sequence is the third of six verified tokens: three are emitted, though five were accepted."""
    engine = with_proposer(plain, Oracle(ALL, 5))
    (sequence,) = run(engine, [26], max_tokens=50)
    stats = sequence.stats
    assert sequence.output_ids == [27, 28, 29, EOS]
    assert (stats.num_emitted, stats.num_passes) == (4, 1)
    assert stats.tokens_per_pass == 3
    assert (stats.num_accepted, stats.num_candidates) == (5, 5)


def test_counters_add_up_over_rounds(plain):
    """Six tokens a round after the first, which comes from the prompt's pass."""
    engine = with_proposer(plain, Oracle(ALL, 5))
    (sequence,) = run(engine, [31], max_tokens=21)
    stats = sequence.stats
    assert (stats.num_emitted, stats.num_passes, stats.num_drafts) == (21, 4, 4)
    assert stats.candidates_by_position == stats.accepted_by_position == [4, 3, 3, 3, 3]
    assert stats.acceptance_rate == 1
    assert stats.tokens_per_pass == 5


def test_counters_of_a_request_without_candidates_have_no_rates(plain):
    (sequence,) = run(plain, [31], max_tokens=1)
    assert sequence.stats.acceptance_rate is None
    assert sequence.stats.tokens_per_pass is None
    assert sequence.stats.tokens_per_second is None
    (sequence,) = run(plain, [31], max_tokens=5)
    assert sequence.stats.acceptance_rate is None
    assert sequence.stats.tokens_per_pass == 1
    assert sequence.stats.num_drafts == 0


class Wrong(TestProposer):
    """Never right, in every second round."""

    def grow(self, text, most):
        return [(0, text[-1]), (1, text[-1])][: most - 1] if len(text) % 2 else []


def test_refused_candidates_count_as_candidates_alone(plain):
    engine = with_proposer(plain, Wrong())
    (sequence,) = run(engine, [31], max_tokens=12)
    stats = sequence.stats
    assert (stats.num_passes, stats.num_drafts, stats.num_candidates, stats.num_accepted) == (11, 5, 9, 0)
    assert stats.candidates_by_position == [5, 4]
    assert stats.accepted_by_position == [0, 0]
    assert (stats.acceptance_rate, stats.tokens_per_pass) == (0, 1)
