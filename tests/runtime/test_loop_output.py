"""The loop says what the target says: no proposer, batch, limit or stop changes a token.

Run: pytest tests/runtime/test_loop_output.py
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import NGRAM, Oracle, RandomTrees, build, finish, outputs, run, with_proposer
from support.tiny_models import tiny_checkpoint

from tspec.core.sampling_params import SamplingParams
from tspec.core.tree import MAX_NODES
from tspec.proposers.none import NoProposer
from tspec.runtime.sequence import FinishReason

VOCAB = 61
RANDOM = np.random.default_rng(5)
REPEATS = (RANDOM.integers(0, VOCAB, 9).tolist() * 9)[:75]
PROMPTS = [REPEATS, [7], RANDOM.integers(0, VOCAB, 70).tolist(), REPEATS[3:17], [4, 4, 4]]
UNEVEN = [RANDOM.integers(0, VOCAB, length).tolist() for length in (1, 2, 5, 11, 17, 29, 40, 66)]
MOST = [3, 30, 1, 17, 64, 9, 25, 40]
"""max_tokens of each prompt of UNEVEN."""


@pytest.fixture(
    scope="module",
    params=[("llama", "float32"), ("mistral", "bfloat16"), ("qwen3", "float16")],
    ids="-".join,
)
def folder_and_dtype(request, tmp_path_factory):
    architecture, dtype = request.param
    folder = tmp_path_factory.mktemp(architecture)
    window = {"sliding_window": 40} if architecture == "mistral" else {}
    tiny_checkpoint(folder, architecture, hidden=48, heads=6, kv_heads=2, vocab=VOCAB, **window)
    return folder, dtype


@pytest.fixture(scope="module")
def plain(folder_and_dtype):
    folder, dtype = folder_and_dtype
    engine = build(folder, dtype=dtype, max_model_len=256)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def texts(plain):
    """Prompt and output of each prompt, without speculation, one at a time."""
    return [prompt + run(plain, prompt, max_tokens=90)[0].output_ids for prompt in PROMPTS]


def test_ngram_says_what_plain_decoding_says(folder_and_dtype, texts):
    folder, dtype = folder_and_dtype
    engine = build(folder, NGRAM, dtype=dtype, max_model_len=256)
    sequences = [run(engine, prompt, max_tokens=90)[0] for prompt in PROMPTS]
    engine.close()
    assert [sequence.tokens for sequence in sequences] == texts
    assert sum(sequence.stats.num_accepted for sequence in sequences) > 0


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 1 << 32), most=st.integers(1, MAX_NODES - 1))
def test_random_trees_change_no_token(plain, texts, seed, most):
    """With siblings, the same token in several branches, and the right path through them now and then."""
    engine = with_proposer(plain, RandomTrees(texts, seed, VOCAB), max_candidates=most, node_budget=500)
    assert [each.tokens for each in run(engine, *PROMPTS, max_tokens=90)] == texts


def test_random_trees_are_accepted_in_part(plain, texts):
    """What the test above relies on: paths of several nodes are taken, and not only chains."""
    engine = with_proposer(plain, RandomTrees(texts, 1, VOCAB), max_candidates=20, node_budget=500)
    stats = [sequence.stats for sequence in run(engine, *PROMPTS, max_tokens=90)]
    assert max(each.tokens_per_pass for each in stats) > 1.5
    assert 0 < sum(each.num_accepted for each in stats) < sum(each.num_candidates for each in stats) / 2


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_exactly_max_tokens_come_however_many_are_accepted(plain, texts, max_tokens):
    for num_candidates in (0, 1, 5, 12):
        proposer = Oracle(texts, num_candidates)
        engine = with_proposer(plain, proposer, max_candidates=12)
        (sequence,) = run(engine, PROMPTS[0], max_tokens=max_tokens)
        assert sequence.tokens == texts[0][: len(PROMPTS[0]) + max_tokens]
        assert sequence.finish_reason is FinishReason.LENGTH
        assert sequence.stats.num_emitted == max_tokens
        assert sequence.stats.num_accepted == sequence.stats.num_candidates


def test_no_candidate_is_asked_for_that_could_not_be_emitted(plain, texts):
    """With r tokens left, the tree has at most r nodes: r - 1 candidates and the bonus token."""
    proposer = Oracle(texts)
    engine = with_proposer(plain, proposer, max_candidates=63)
    (sequence,) = run(engine, PROMPTS[1], max_tokens=12)
    assert proposer.rounds == [([11], [11])]
    assert sequence.tokens == texts[1][:13]


@pytest.mark.parametrize("num_candidates", [0, 4, 63])
@pytest.mark.parametrize("room", [1, 2, 5, 64])
def test_a_text_ends_with_the_context_to_the_token(folder_and_dtype, plain, texts, num_candidates, room):
    prompt = PROMPTS[2]
    folder, dtype = folder_and_dtype
    small = build(folder, dtype=dtype, max_model_len=len(prompt) + room)
    engine = with_proposer(small, Oracle(texts, num_candidates), max_candidates=63)
    (sequence,) = run(engine, prompt, max_tokens=1000)
    small.close()
    assert sequence.tokens == texts[2][: len(prompt) + room]
    assert sequence.finish_reason is FinishReason.LENGTH


def test_a_request_for_no_tokens_ends_at_once(plain):
    sequence = plain.add(PROMPTS[0], SamplingParams(max_tokens=0))
    assert (sequence.output_ids, sequence.finish_reason) == ([], FinishReason.LENGTH)
    assert not plain.has_work
    assert sequence.stats.num_passes == sequence.stats.num_emitted == 0


@pytest.mark.parametrize("order", [1, -1])
def test_each_of_a_batch_says_what_it_says_alone(folder_and_dtype, plain, order):
    folder, dtype = folder_and_dtype
    alone = [
        run(plain, prompt, max_tokens=most)[0].output_ids for prompt, most in zip(UNEVEN, MOST, strict=True)
    ]
    engine = build(folder, NGRAM, dtype=dtype, max_model_len=256, max_num_seqs=8)
    requests = list(zip(UNEVEN, MOST, strict=True))[::order]
    sequences = [engine.add(prompt, SamplingParams(max_tokens=most)) for prompt, most in requests]
    finish(engine)
    engine.close()
    assert outputs(sequences) == alone[::order]


def test_requests_that_join_and_leave_midway_change_no_other(plain):
    alone = [
        run(plain, prompt, max_tokens=most)[0].output_ids for prompt, most in zip(UNEVEN, MOST, strict=True)
    ]
    known = [prompt + output for prompt, output in zip(UNEVEN, alone, strict=True)]
    engine = with_proposer(plain, RandomTrees(known, 3, VOCAB), max_candidates=9, max_num_seqs=3)
    sequences = []
    for prompt, most in zip(UNEVEN, MOST, strict=True):
        sequences.append(engine.add(prompt, SamplingParams(max_tokens=most)))
        other = engine.add(prompt[::-1], SamplingParams(max_tokens=50))
        for _ in range(3):
            engine.step()
        engine.abort(other)
    finish(engine)
    assert outputs(sequences) == alone


def test_a_request_without_speculation_leaves_the_others_theirs(plain, texts):
    proposer = Oracle(texts)
    engine = with_proposer(plain, proposer, max_candidates=5)
    asked = ("off", 2, "auto")
    sequences = [engine.add(PROMPTS[0], SamplingParams(max_tokens=20, speculative=each)) for each in asked]
    finish(engine)
    assert [sequence.tokens for sequence in sequences] == [texts[0][: len(PROMPTS[0]) + 20]] * 3
    assert [max(each.stats.candidates_by_position, default=0) > 0 for each in sequences] == [
        False,
        True,
        True,
    ]
    assert [len(each.stats.candidates_by_position) for each in sequences] == [0, 2, 5]


class Keeping(NoProposer):
    """Keeps what it is told of each slot, as it was told."""

    def __init__(self):
        self.told = []

    def observe(self, committed):
        self.told.append(committed)


def test_what_was_committed_stays_as_it_was_told(plain):
    """Passes write over their outputs, and a proposer may look at what it was told much later."""
    keeping = Keeping()
    sequences = run(with_proposer(plain, keeping), *PROMPTS, max_tokens=30)
    found = [[] for _ in sequences]
    for committed in keeping.told:
        for row, (slot, count) in enumerate(zip(committed.slots, committed.counts, strict=True)):
            found[slot] += committed.tokens[row, :count].tolist()
    assert sorted(found) == sorted(outputs(sequences))
