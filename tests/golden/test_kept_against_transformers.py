"""What is kept, and with which probabilities, equals what the logits processors of transformers keep.

They run in float64 on scores = logits / temperature in float32, which is what transformers divides in, too.

Run: pytest tests/golden/test_kept_against_transformers.py
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.kept_row import assert_same_kept, keep
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

pytestmark = pytest.mark.golden

TEMPERATURES = (1.0, 0.7, 1.7)
TOP_K = (0, 1, 7, 50, 500)
TOP_P = (1.0, 0.9, 0.37, 1e-3, 0.9999)
MIN_P = (0.0, 0.05, 0.6, 1.0)
VOCAB = 331


def rows() -> Iterator[tuple[str, np.ndarray]]:
    """Random logits, flat and peaked, and those that comparing gets wrong first."""
    random = np.random.default_rng(0)
    for spread in (0.1, 2.0, 12.0):
        yield f"spread {spread}", random.normal(size=VOCAB) * spread
    yield "ties", random.normal(size=VOCAB).round()
    yield "all equal", np.full(VOCAB, 1.25)
    yield "one huge", np.where(np.arange(VOCAB) == 11, 1e30, random.normal(size=VOCAB))
    yield "minus infinities", np.where(random.random(VOCAB) < 0.9, -np.inf, random.normal(size=VOCAB))
    yield "two values", (np.arange(VOCAB) % 2).astype(float)
    yield "one finite", np.where(np.arange(VOCAB) == 5, 0.5, -np.inf)


ROWS = dict(rows())


def highest_of_ties(scores: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
    """The same number of tokens of each score, but of equal ones the highest: top-p's sort leaves it open which."""
    order = sorted(range(len(scores)), key=lambda token: (float(scores[token]), token), reverse=True)
    chosen = torch.zeros_like(is_kept)
    chosen[order[: int(is_kept.sum())]] = True
    assert torch.equal(scores[chosen].sort().values, scores[is_kept].sort().values)
    return chosen


def processed(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Scores float64 [V] after the processors that generation would use, in their order."""
    ids = torch.zeros(1, 1, dtype=torch.long)
    scores = TemperatureLogitsWarper(temperature)(
        ids, torch.from_numpy(logits.astype(np.float32))[None]
    ).double()
    if top_k > 0:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(float(np.float32(top_p)))(ids, scores)
    if min_p > 0:
        scores = MinPLogitsWarper(float(np.float32(min_p)))(ids, scores)
    return scores[0]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_kept_tokens_and_their_probabilities_are_those_of_transformers(name, temperature):
    logits = ROWS[name]
    for top_k, top_p, min_p in np.stack(np.meshgrid(TOP_K, TOP_P, MIN_P), -1).reshape(-1, 3):
        asked = temperature, int(top_k), float(top_p), float(min_p)
        processed_scores = processed(logits, *asked)
        scores, found, log_sum = keep(logits, *asked)
        expected = highest_of_ties(scores, processed_scores > -torch.inf)
        assert_same_kept(found, expected, scores, int(top_k), float(top_p))
        if torch.equal(found, expected):
            probabilities = torch.exp(scores[found].double() - log_sum).sort().values
            theirs = processed_scores.softmax(0)[processed_scores > -torch.inf].sort().values
            torch.testing.assert_close(probabilities, theirs, rtol=2e-6, atol=0)
