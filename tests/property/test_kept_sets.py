"""The threshold search keeps the set of the float64 reference, for whatever logits and limits.

Run: pytest tests/property/test_kept_sets.py
"""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.kept_row import assert_same_kept, keep

from tspec.kernels.reference.sampling import _kept_prefix

NUMBERS = st.sampled_from((-np.inf, np.nan, 0.0, -0.0, 1.0, 2.5, -3.0, 1e30, -1e30, 1e-38)) | st.floats(
    -20, 20, width=32
)
ROWS = st.lists(NUMBERS, min_size=1, max_size=200) | st.builds(
    lambda seed, size, spread, step: (
        np.round(np.random.default_rng(seed).normal(size=size) * spread / step) * step
    ),
    st.integers(0, 1 << 32),
    st.integers(1, 3000),
    st.sampled_from((0.01, 1.0, 4.0, 30.0)),
    st.sampled_from((1.0, 0.25, 1e-6)),
)
SHARES = st.floats(2.0**-20, 1.0, width=32)


def oracle(scores: torch.Tensor, top_k: int, top_p: float, min_p: float) -> tuple[torch.Tensor, float]:
    """(is kept bool [V], log of the sum of exp) by sorting."""
    wide = scores.double()
    order = sorted(range(len(scores)), key=lambda token: (float(scores[token]), token), reverse=True)
    count = _kept_prefix(wide[order], top_k, float(np.float32(top_p)), float(np.float32(min_p)))
    is_kept = torch.zeros(len(scores), dtype=torch.bool)
    is_kept[order[:count]] = True
    return is_kept, float(torch.logsumexp(wide[is_kept], 0)) if count else 0.0


@settings(deadline=None, max_examples=300)
@given(
    logits=ROWS,
    temperature=st.sampled_from((1.0, 0.7, 3.0, 0.05)),
    top_k=st.sampled_from((0, -1, 1, 2, 40)) | st.integers(1, 3000),
    top_p=st.just(1.0) | SHARES,
    min_p=st.just(0.0) | SHARES,
)
@example(logits=[0.0] * 130, temperature=1.0, top_k=0, top_p=1e-6, min_p=0.0)
@example(logits=[-np.inf, np.nan], temperature=1.0, top_k=1, top_p=0.5, min_p=0.5)
@example(logits=[-0.0, 0.0, -0.0], temperature=1.0, top_k=1, top_p=0.5, min_p=1.0)
def test_what_is_kept_is_what_sorting_would_keep(logits, temperature, top_k, top_p, min_p):
    scores, found, log_sum = keep(np.array(logits, np.float32), temperature, top_k, top_p, min_p)
    expected, expected_sum = oracle(scores, top_k, top_p, min_p)
    assert_same_kept(found, expected, scores, top_k, top_p)
    if torch.equal(found, expected):
        assert log_sum == pytest.approx(expected_sum, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("top_k", [0, 5, 768, 769, 49152])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.999])
def test_a_large_vocabulary_is_kept_as_sorting_would_keep_it(top_k, top_p):
    """Around the number of blocks, where the largest of each block stop being a bound; flat and peaked rows."""
    random = np.random.default_rng(top_k)
    for spread in (0.01, 1.0, 3.0):
        logits = random.normal(size=49152) * spread
        scores, found, _ = keep(logits, 1.0, top_k, top_p, 0.0)
        assert_same_kept(found, oracle(scores, top_k, top_p, 0.0)[0], scores, top_k, top_p)


def test_an_infinite_score_is_all_that_is_kept():
    _, found, log_sum = keep(np.array([3e38, 1.0, 3e38, -np.inf]), 0.01, 0, 0.9, 0.0)
    assert found.tolist() == [True, False, True, False]
    assert log_sum == np.inf
