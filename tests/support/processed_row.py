"""What the logits processors of transformers keep of one row, and whether ours keep the same with the same law."""

from collections.abc import Iterator

import numpy as np
import torch
from support.kept_row import assert_same_kept
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


def hard_rows(vocab: int) -> Iterator[tuple[str, np.ndarray]]:
    """Random logits, flat and peaked, and those that comparing gets wrong first; float64 [V]."""
    random = np.random.default_rng(0)
    for spread in (0.1, 2.0, 12.0):
        yield f"spread {spread}", random.normal(size=vocab) * spread
    yield "ties", random.normal(size=vocab).round()
    yield "all equal", np.full(vocab, 1.25)
    yield "one huge", np.where(np.arange(vocab) == 11, 1e30, random.normal(size=vocab))
    yield "minus infinities", np.where(random.random(vocab) < 0.9, -np.inf, random.normal(size=vocab))
    yield "two values", (np.arange(vocab) % 2).astype(float)
    yield "one finite", np.where(np.arange(vocab) == 5, 0.5, -np.inf)


def filtered(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """Scores float64 [V] of float32 logits after the processors that generation would use, in their order."""
    ids = torch.zeros(1, 1, dtype=torch.long)
    scores = TemperatureLogitsWarper(temperature)(ids, logits[None]).double()
    if top_k > 0:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(float(np.float32(top_p)))(ids, scores)
    if min_p > 0:
        scores = MinPLogitsWarper(float(np.float32(min_p)))(ids, scores)
    return scores[0]


def highest_of_ties(scores: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Move `theirs` to the highest of equally scored tokens: the sort of top-p leaves it open which of them stay."""
    order = sorted(range(len(scores)), key=lambda token: (float(scores[token]), token), reverse=True)
    left = theirs[theirs > -torch.inf].sort(descending=True).values
    moved = torch.full_like(theirs, -torch.inf)
    moved[order[: len(left)]] = left
    assert torch.equal(moved[moved > -torch.inf], scores[moved > -torch.inf].double())
    return moved


def assert_same_law(
    theirs: torch.Tensor, scores: torch.Tensor, found: torch.Tensor, log_sum: float, top_k: int, top_p: float
) -> None:
    """Tokens of float32 `scores` are `found` to be kept as in `theirs`, with the same probabilities.

    Where sets may differ, see `assert_same_kept`, the law of what both keep is the same, and ours sums to 1.
    """
    theirs = highest_of_ties(scores, theirs)
    expected = theirs > -torch.inf
    assert_same_kept(found, expected, scores, top_k, top_p)
    if not expected.any():
        return
    both = found & expected
    ours = torch.exp(scores.double() - log_sum)
    law, their_law = ours[both], theirs.softmax(0)[both]
    if not torch.equal(found, expected):
        torch.testing.assert_close(float(ours[found].sum()), 1.0, rtol=2e-6, atol=0)
        law, their_law = law / law.sum(), their_law / their_law.sum()
    torch.testing.assert_close(law, their_law, rtol=2e-6, atol=0)
