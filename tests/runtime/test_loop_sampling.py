"""Sampled text follows from its seed alone: no proposer, batch or tree changes a token or a log-probability.

Run: pytest tests/runtime/test_loop_sampling.py
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import NGRAM, RandomTrees, build, outputs, run, with_proposer
from support.table_model import table_checkpoint
from support.tiny_models import tiny_checkpoint

from tspec.core.sampling_params import SamplingParams, split_samples
from tspec.runtime.sequence import FinishReason

VOCAB = 61
RANDOM = np.random.default_rng(5)
REPEATS = (RANDOM.integers(0, VOCAB, 9).tolist() * 9)[:75]
PROMPTS = [REPEATS, [7], RANDOM.integers(0, VOCAB, 70).tolist(), [4, 4, 4]]
EVERYTHING = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "logit_bias": {3: 2.5, 9: -1.0, 60: 0.5},
    "bad_words": [[5], [3, 9], [7, 7, 1]],
    "min_tokens": 4,
    "stop_token_ids": [11],
    "logprobs": 5,
}
WAYS = {
    "temperature": {"temperature": 1.7},
    "filters": {"temperature": 2.0, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "everything": {"temperature": 2.0, "top_k": 40, "top_p": 0.95, **EVERYTHING},
    "greedy": {"temperature": 0.0, **EVERYTHING},
}
SEED = 12345


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    tiny_checkpoint(folder, "llama", hidden=48, heads=6, kv_heads=2, vocab=VOCAB)
    return folder


@pytest.fixture(scope="module")
def plain(folder):
    engine = build(folder, max_model_len=256)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def ngram(folder):
    engine = build(folder, NGRAM, max_model_len=256)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=WAYS)
def way(request):
    return WAYS[request.param] | {"seed": SEED, "max_tokens": 60}


@pytest.fixture(scope="module")
def alone(plain, way):
    """Each prompt's sequence, decoded alone and without speculation."""
    return [run(plain, prompt, **way)[0] for prompt in PROMPTS]


def texts_and_logprobs(sequences):
    return [(each.output_ids, each.finish_reason, each.logprobs) for each in sequences]


def test_a_batch_changes_nothing(plain, way, alone):
    assert texts_and_logprobs(run(plain, *PROMPTS, **way)) == texts_and_logprobs(alone)


def test_ngram_changes_nothing(ngram, way, alone):
    assert texts_and_logprobs([run(ngram, prompt, **way)[0] for prompt in PROMPTS]) == texts_and_logprobs(
        alone
    )
    assert texts_and_logprobs(run(ngram, *PROMPTS, **way)) == texts_and_logprobs(alone)


@settings(deadline=None, max_examples=8)
@given(tree_seed=st.integers(0, 1 << 32))
def test_random_trees_change_nothing(plain, way, alone, tree_seed):
    """With the right path through them now and then, siblings, and the same token in several branches."""
    known = [prompt + each.output_ids for prompt, each in zip(PROMPTS, alone, strict=True)]
    engine = with_proposer(plain, RandomTrees(known, tree_seed, VOCAB), max_candidates=12, node_budget=200)
    assert texts_and_logprobs(run(engine, *PROMPTS, **way)) == texts_and_logprobs(alone)
    engine = with_proposer(plain, RandomTrees(known, tree_seed, VOCAB), max_candidates=12, node_budget=200)
    assert texts_and_logprobs(run(engine, PROMPTS[0], **way)) == texts_and_logprobs(alone[:1])


def test_random_trees_are_accepted_in_part(plain, way, alone):
    known = [prompt + each.output_ids for prompt, each in zip(PROMPTS, alone, strict=True)]
    engine = with_proposer(plain, RandomTrees(known, 1, VOCAB), max_candidates=12, node_budget=200)
    stats = [each.stats for each in run(engine, *PROMPTS, **way)]
    assert 0 < sum(each.num_accepted for each in stats) < sum(each.num_candidates for each in stats)


def test_different_requests_in_one_batch_are_each_as_alone(plain):
    """Greedy, sampled, filtered and edited rows share passes."""
    mixed = [
        SamplingParams(**params, seed=SEED + row, max_tokens=30) for row, params in enumerate(WAYS.values())
    ]
    alone = []
    for prompt, params in zip(PROMPTS, mixed, strict=True):
        alone.append(plain.add(prompt, params))
        while plain.has_work:
            plain.step()
    together = [plain.add(prompt, params) for prompt, params in zip(PROMPTS, mixed, strict=True)]
    while plain.has_work:
        plain.step()
    assert texts_and_logprobs(together) == texts_and_logprobs(alone)


def test_seeds_make_texts_and_no_seed_is_reported(plain):
    first, second = (run(plain, [7], temperature=2.0, seed=seed)[0].output_ids for seed in (1, 2))
    assert first != second
    unseeded = [run(plain, [7], temperature=2.0)[0] for _ in range(5)]
    assert len({tuple(each.output_ids) for each in unseeded}) == 5
    again = run(plain, [7], temperature=2.0, seed=unseeded[3].tables.seed)[0]
    assert again.output_ids == unseeded[3].output_ids


def test_samples_of_a_prompt_have_the_seeds_that_follow(plain):
    samples = split_samples(SamplingParams(temperature=2.0, seed=9, n=3, max_tokens=20))
    found = [plain.add([7], each) for each in samples]
    while plain.has_work:
        plain.step()
    assert outputs(found) == [
        run(plain, [7], temperature=2.0, seed=9 + j, max_tokens=20)[0].output_ids for j in (0, 1, 2)
    ]


@pytest.mark.parametrize("temperature", [1e-6, 1e-12, 0.0])
def test_tiny_temperatures_are_greedy(plain, temperature):
    greedy = run(plain, REPEATS, max_tokens=40)[0].output_ids
    assert run(plain, REPEATS, temperature=temperature, seed=1, max_tokens=40)[0].output_ids == greedy


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}], ids=str)
def test_filters_that_keep_one_token_are_greedy(plain, params):
    greedy = run(plain, REPEATS, max_tokens=40)[0].output_ids
    assert run(plain, REPEATS, temperature=0.8, seed=1, max_tokens=40, **params)[0].output_ids == greedy


@pytest.mark.parametrize(
    "params", [{"top_k": 0}, {"top_k": -1}, {"top_k": VOCAB}, {"top_k": 10 * VOCAB}], ids=str
)
def test_filters_that_keep_all_change_nothing(plain, params):
    free = run(plain, REPEATS, temperature=1.5, seed=1, max_tokens=40)[0].output_ids
    assert (
        run(plain, REPEATS, temperature=1.5, seed=1, max_tokens=40, min_p=0.0, **params)[0].output_ids == free
    )


def test_sampling_asked_for_by_a_filter_alone_samples(plain):
    """Temperature left out, as with top_k=50, means 1."""
    assert SamplingParams(top_k=50).effective_temperature == 1.0
    texts = {
        tuple(run(plain, [7], temperature=0.8, seed=seed, max_tokens=20)[0].output_ids) for seed in range(50)
    }
    assert len(texts) > 1


def test_forbidden_tokens_never_come(plain):
    params = {"temperature": 3.0, "seed": 4, "max_tokens": 100}
    (found,) = run(plain, [7], bad_words=[[5], [3, 9]], allowed_token_ids=range(0, 20), **params)
    text = found.output_ids
    assert len(text) == 100 and set(text) <= set(range(20)) - {5}
    assert all(pair != (3, 9) for pair in pairwise(text))


def test_a_text_has_at_least_min_tokens(plain):
    params = {"temperature": 1.0, "logit_bias": {11: 100.0}, "stop_token_ids": [11], "seed": 3}
    assert run(plain, [7], **params)[0].output_ids == [11]
    found = run(plain, [7], min_tokens=6, **params)[0]
    assert (len(found.output_ids), found.output_ids[-1], found.finish_reason) == (7, 11, FinishReason.STOP)


def test_where_nothing_may_come_this_request_fails_and_the_others_go_on(plain):
    params = {"temperature": 1.0, "seed": 2, "max_tokens": 20}
    alone = run(plain, REPEATS, **params)[0].output_ids
    other = plain.add(REPEATS, SamplingParams(**params))
    broken = plain.add(
        [7], SamplingParams(allowed_token_ids=[4, 5], bad_words=[[4, 5], [4, 4], [5]], **params)
    )
    while plain.has_work:
        plain.step()
    assert other.output_ids == alone
    assert broken.finish_reason is FinishReason.ERROR and broken.output_ids == [4]
    assert "after 1 tokens allowed_token_ids and bad_words leave none" in broken.error


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("speculative", [None, NGRAM], ids=["plain", "ngram"])
def test_a_request_of_nan_logits_fails_alone(tmp_path_factory, params, speculative):
    folder = tmp_path_factory.mktemp("nan")
    table_checkpoint(folder, {1: 2, 2: 3, 7: 8, 8: 7}, vocab=100, nan_tokens=(3,))
    engine = build(folder, speculative)
    try:
        (alone,) = (
            run(engine, [7], max_tokens=12, seed=5, **params) if params else run(engine, [7], max_tokens=12)
        )
        seed = {"seed": 5} if params else {}
        broken, other = run(engine, [2, 3, 2, 3], [7], max_tokens=12, **seed, **params)
        assert other.output_ids == alone.output_ids
        assert (broken.output_ids, broken.finish_reason) == ([], FinishReason.ERROR)
        assert "Check the weights of the model" in broken.error
    finally:
        engine.close()


def test_prompt_logprobs_are_those_of_decoding_the_prompt(plain):
    """Forced along the prompt token by token, the text has the log-probabilities that the prompt gets at once."""
    prompt = REPEATS + PROMPTS[2]
    (scored,) = run(plain, prompt, max_tokens=5, prompt_logprobs=3, logprobs=3)
    assert [each.token_id for each in scored.prompt_logprobs] == prompt[1:]
    for place in (1, 2, 63, 64, 65, 100, len(prompt) - 1):
        (forced,) = run(plain, prompt[:place], allowed_token_ids=[prompt[place]], max_tokens=1, logprobs=3)
        assert forced.logprobs == scored.prompt_logprobs[place - 1 : place]
    (plainly,) = run(plain, prompt, max_tokens=5, logprobs=3)
    assert (plainly.output_ids, plainly.logprobs) == (scored.output_ids, scored.logprobs)


def test_logprobs_are_those_before_all_processing(plain):
    (free,) = run(plain, [7], max_tokens=1, logprobs=20)
    (edited,) = run(
        plain, [7], max_tokens=1, logprobs=20, temperature=0.3, seed=1, top_k=2, **{"logit_bias": {3: 50.0}}
    )
    assert edited.output_ids == [3]
    assert edited.logprobs[0].top == free.logprobs[0].top
    assert sorted((value for _, value in free.logprobs[0].top), reverse=True) == [
        v for _, v in free.logprobs[0].top
    ]
