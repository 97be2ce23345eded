"""Requests that begin alike share what was computed of it, and say what they say without sharing.

Run: pytest tests/runtime/test_loop_prefixes.py
"""

from typing import Any

import numpy as np
import pytest
from support.engines import NGRAM, RandomTrees, build, finish, num_held, outputs, run, with_proposer
from support.tiny_models import tiny_checkpoint

from tspec.core.sampling_params import SamplingParams
from tspec.core.shapes import BLOCK_TOKENS
from tspec.core.speculative_config import SpeculativeConfig
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.none import NoProposer
from tspec.runtime.loop import Engine

VOCAB = 61
RANDOM = np.random.default_rng(8)
ONE, OTHER = (RANDOM.integers(0, VOCAB, 2100).tolist() for _ in range(2))
NUM_REQUESTS, NUM_ALIKE, NUM_OWN = 32, 2000, 12
NUM_SHARED = NUM_ALIKE // BLOCK_TOKENS * BLOCK_TOKENS
PROPOSERS = ["none", "ngram", "trees"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    tiny_checkpoint(
        folder, "llama", hidden=32, heads=4, kv_heads=1, vocab=VOCAB, max_position_embeddings=2304
    )
    engine = build(folder, max_num_seqs=NUM_REQUESTS, kv_cache_mib=64)
    yield engine
    engine.close()


def opened(plain: Engine, name: str, texts: list[list[int]] = (), **more: Any) -> Engine:
    """An engine without any known text. `texts` are known to the proposer of random trees.

    Prompts have passes of their own, so that each of their tokens counts as prefilled.
    """
    proposer = {
        "none": NoProposer,
        "ngram": lambda: NgramProposer(SpeculativeConfig(**NGRAM)),
        "trees": lambda: RandomTrees(texts, 4, VOCAB),
    }[name]()
    options = {"max_num_seqs": NUM_REQUESTS, "max_candidates": 5, "node_budget": 200, "mixes_prompts": False}
    options |= more
    return with_proposer(plain, proposer, **options)


@pytest.fixture(scope="module")
def alike():
    """Prompts that begin with the same 2,000 tokens, and go on each in its own way."""
    own = RANDOM.integers(0, VOCAB, (NUM_REQUESTS, NUM_OWN)).tolist()
    return [ONE[:NUM_ALIKE] + each for each in own]


@pytest.fixture(scope="module")
def unshared(plain, alike):
    """What these say without sharing."""
    engine = opened(plain, "none", share_prefixes=False)
    texts = outputs(run(engine, *alike, max_tokens=20))
    metrics = engine.metrics()
    assert metrics.num_prefilled == NUM_REQUESTS * (NUM_ALIKE + NUM_OWN)
    assert metrics.num_reused == metrics.num_queried == 0
    return texts


@pytest.mark.parametrize("name", PROPOSERS)
def test_a_prefix_of_many_requests_is_computed_once(plain, alike, unshared, name):
    """All come at once. Tokens behind the last full block of the prefix are computed by each."""
    known = [prompt + text for prompt, text in zip(alike, unshared, strict=True)]
    engine = opened(plain, name, known)
    sequences = run(engine, *alike, max_tokens=20)
    assert outputs(sequences) == unshared
    metrics = engine.metrics()
    num_own = NUM_ALIKE - NUM_SHARED + NUM_OWN
    assert metrics.num_prefilled == NUM_SHARED + NUM_REQUESTS * num_own
    assert metrics.num_reused == (NUM_REQUESTS - 1) * NUM_SHARED
    assert sorted(each.stats.num_prefilled for each in sequences)[-2:] == [num_own, NUM_SHARED + num_own]
    assert (metrics.num_accepted > 0) == (name != "none")
    assert num_held(engine) == {"blocks": 0, "running": 0, "waiting": 0}


@pytest.mark.parametrize("name", PROPOSERS)
def test_requests_that_come_later_find_it_too(plain, alike, unshared, name):
    """Even while the first is still being computed, and after all have ended."""
    engine = opened(plain, name)
    sequences = [engine.add(alike[0], SamplingParams(max_tokens=20))]
    for prompt in alike[1:8]:
        engine.step()
        sequences.append(engine.add(prompt, SamplingParams(max_tokens=20)))
    finish(engine)
    sequences += run(engine, *alike[8:10], max_tokens=20)
    assert outputs(sequences) == unshared[:10]
    assert engine.metrics().num_reused == 9 * NUM_SHARED


@pytest.mark.parametrize("name", PROPOSERS)
@pytest.mark.parametrize("prefix", [1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1])
def test_texts_that_differ_right_behind_a_prefix_stay_apart(plain, name, prefix):
    """One, another, and the first again: each as on an engine that has seen nothing before."""
    prompts = [ONE[:150], ONE[:prefix] + OTHER[prefix:150], ONE[:150]]
    assert prompts[0][prefix] != prompts[1][prefix]
    params = {"max_tokens": 70, "temperature": 1.2, "seed": 3}
    cold = [run(opened(plain, "none"), prompt, **params)[0] for prompt in prompts]
    assert [each.stats.num_reused for each in cold] == [0, 0, 0]
    engine = opened(plain, name, [each.tokens for each in cold])
    warm = [run(engine, prompt, **params)[0] for prompt in prompts]
    assert outputs(warm) == outputs(cold)
    whole = 149 // BLOCK_TOKENS * BLOCK_TOKENS
    reused = [0, prefix // BLOCK_TOKENS * BLOCK_TOKENS, whole]
    assert [each.stats.num_reused for each in warm] == reused
    together = run(opened(plain, name), *prompts, **params)
    assert outputs(together) == outputs(cold)


@pytest.mark.parametrize("name", PROPOSERS)
def test_the_next_turn_of_a_conversation_finds_the_turns_before(plain, name):
    """Prompt and output alike; what was refused of candidates is no part of them."""
    turns, texts = [ONE[:100], OTHER[:30], ONE[300:303]], []
    prompt: list[int] = []
    for turn in turns:
        prompt = prompt + turn
        texts.append(run(opened(plain, "none"), prompt, max_tokens=80)[0].tokens)
        prompt = texts[-1]
    engine = opened(plain, name, texts)
    for number, text in enumerate(texts):
        (sequence,) = run(engine, text[:-80], max_tokens=80)
        before = len(texts[number - 1]) - 1 if number else 0  # the last token was never computed
        assert sequence.tokens == text
        assert sequence.stats.num_reused == before // BLOCK_TOKENS * BLOCK_TOKENS
