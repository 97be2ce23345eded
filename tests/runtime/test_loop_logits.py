"""A model whose logits are a table: what certain candidates do to the law of a text, temperatures at their edges, and
logits that hold nothing.

Run: pytest tests/runtime/test_loop_logits.py
"""

from itertools import pairwise

import numpy as np
import pytest
from support.engines import NGRAM, Oracle, TestProposer, build, finish, num_held, outputs, run, with_proposer
from support.table_model import logits_checkpoint
from support.text_law import spend

from tspec.core.sampling_params import SamplingParams
from tspec.core.speculative_config import SpeculativeConfig
from tspec.proposers.ngram import NgramProposer
from tspec.runtime.sequence import FinishReason

VOCAB, ALIVE = 98, 4
"""Of the vocabulary only the first tokens are ever likely."""

ROWS, LENGTH = 25, 330
ALARM, FALSE_ALARM = 60.0, 2.3e-8
"""A chi-square of 12 degrees of freedom, and how likely it is above that."""

BROKEN = 60
"""Nothing can follow it."""


def law_table() -> np.ndarray:
    logits = np.full((VOCAB, VOCAB), -60.0, np.float32)
    logits[:, :ALIVE] = 1.5 * np.random.default_rng(1).normal(size=(VOCAB, ALIVE))
    return logits


TABLE = law_table()


class Likeliest(TestProposer):
    """The likeliest continuation as a chain; or the likeliest tokens as children of the root."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def grow(self, text, most):
        if self.width > 1:
            return [(0, token) for token in np.argsort(-TABLE[text[-1]])[: self.width].tolist()]
        chain = [text[-1]]
        for _ in range(most):
            chain.append(int(TABLE[chain[-1]].argmax()))
        return list(enumerate(chain[1:]))


PROPOSERS = {
    "none": TestProposer,
    "ngram": lambda: NgramProposer(SpeculativeConfig(**NGRAM)),
    "chain": lambda: Likeliest(1),
    "siblings": lambda: Likeliest(3),
}


def opened(plain, name, **options):
    options = {"max_candidates": 5, "node_budget": 6 * ROWS, "max_num_seqs": ROWS} | options
    return with_proposer(plain, PROPOSERS[name](), **options)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    logits_checkpoint(folder, TABLE, max_position=512)
    engine = build(folder, max_num_seqs=ROWS)
    yield engine
    engine.close()


def chi_square(texts: list[list[int]], temperature: float) -> float:
    """Of all transitions of the texts, pooled, against the table's law at a temperature."""
    found = np.zeros((ALIVE, ALIVE))
    for text in texts:
        for pair in pairwise(text):
            found[pair] += 1
    weights = np.exp(TABLE[:ALIVE, :ALIVE].astype(np.float64) / temperature)
    expected = weights / weights.sum(1, keepdims=True) * found.sum(1, keepdims=True)
    return float(((found - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("name", PROPOSERS)
def test_texts_follow_the_law_of_the_target_whatever_is_proposed(plain, name):
    """Over 8,000 tokens; and the test would see a colder one."""
    engine = opened(plain, name)
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=LENGTH) for seed in range(ROWS)]
    sequences = [engine.add([0], each) for each in params]
    finish(engine)
    texts = outputs(sequences)
    spend(FALSE_ALARM)
    assert chi_square(texts, 1.0) < ALARM < chi_square(texts, 0.8)
    assert (engine.metrics().num_accepted > 500) == (name != "none")


@pytest.mark.parametrize("name", PROPOSERS)
def test_fifty_seeds_give_different_texts(plain, name):
    engine = opened(plain, name)
    sequences = [
        engine.add([0], SamplingParams(temperature=0.8, seed=seed, max_tokens=12)) for seed in range(50)
    ]
    finish(engine)
    assert len({tuple(text) for text in outputs(sequences)}) > 10


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_smallest_temperatures_are_greedy_with_the_largest_logits(tmp_path, dtype):
    """Logits of 100 and minus 100, of which a temperature makes numbers that float32 cannot hold."""
    logits = np.where(np.random.default_rng(2).random((VOCAB, VOCAB)) < 0.5, -100.0, 99.0).astype(np.float32)
    np.put_along_axis(logits, np.random.default_rng(3).integers(0, VOCAB, (VOCAB, 1)), 100.0, axis=1)
    logits_checkpoint(tmp_path, logits)
    plain = build(tmp_path, dtype=dtype, max_num_seqs=ROWS)
    for name in PROPOSERS:
        engine = opened(plain, name)
        (greedy,) = run(engine, [0], max_tokens=40, logprobs=1)
        for temperature in (1e-6, 1e-12, 1e-30):
            params = {"temperature": temperature, "seed": 1, "logprobs": 1, "max_tokens": 40}
            for filters in ({}, {"top_k": 50, "top_p": 0.9, "min_p": 0.1}):
                (cold,) = run(engine, [0], **params, **filters)
                assert (cold.output_ids, cold.logprobs) == (greedy.output_ids, greedy.logprobs)
        assert len(greedy.output_ids) == 40
        assert np.isfinite([each.logprob for each in greedy.logprobs]).all()
    plain.close()


@pytest.fixture(scope="module", params=["NaN", "minus infinity"])
def broken(request, tmp_path_factory):
    """Counts upwards; after BROKEN every logit is NaN, or minus infinity."""
    logits = np.zeros((VOCAB, VOCAB), np.float32)
    logits[np.arange(VOCAB), np.arange(1, VOCAB + 1) % VOCAB] = 30.0
    logits[BROKEN] = np.nan if request.param == "NaN" else -np.inf
    folder = tmp_path_factory.mktemp("broken")
    logits_checkpoint(folder, logits)
    engine = build(folder, max_num_seqs=8)
    yield engine
    engine.close()


KINDS = [
    {},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"logit_bias": {3: 1.0}, "logprobs": 2},
]


@pytest.mark.parametrize("params", KINDS, ids=str)
@pytest.mark.parametrize("num_candidates", [0, 5])
def test_logits_that_hold_nothing_end_their_own_request_wherever_in_a_round(broken, params, num_candidates):
    """So many tokens before the end of what can be said; candidates go on behind it as if nothing were."""
    known = [[*range(start, VOCAB), *range(VOCAB)] for start in range(VOCAB)]
    asked = {"max_tokens": 20, **params} | ({"seed": 3} if "temperature" in params else {})
    for distance in range(9):
        engine = with_proposer(broken, Oracle(known, num_candidates), max_candidates=5)
        failing, other = run(engine, [BROKEN - distance], [70], **asked)
        assert failing.finish_reason is FinishReason.ERROR
        assert failing.output_ids == list(range(BROKEN - distance + 1, BROKEN + 1))
        assert "none above minus infinity" in failing.error
        assert (other.output_ids, other.finish_reason) == (known[70][1:21], FinishReason.LENGTH)
        assert len(failing.logprobs) == (distance if "logprobs" in params else 0)
        assert engine.metrics().num_emitted == distance + 20
        assert num_held(engine) == {"blocks": 0, "running": 0, "waiting": 0}
