"""What is kept, and with which probabilities, equals what the logits processors of transformers keep.

They run in float64 on scores = logits / temperature in float32, which is what transformers divides in, too.

Run: pytest tests/golden/test_kept_against_transformers.py
"""

import numpy as np
import pytest
import torch
from support.kept_row import keep
from support.processed_row import assert_same_law, filtered, hard_rows

pytestmark = pytest.mark.golden

TEMPERATURES = (1.0, 0.7, 1.7)
TOP_K = (0, 1, 7, 50, 500)
TOP_P = (1.0, 0.9, 0.37, 1e-3, 0.9999)
MIN_P = (0.0, 0.05, 0.6, 1.0)
ROWS = dict(hard_rows(331))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_kept_tokens_and_their_probabilities_are_those_of_transformers(name, temperature):
    logits = ROWS[name]
    for top_k, top_p, min_p in np.stack(np.meshgrid(TOP_K, TOP_P, MIN_P), -1).reshape(-1, 3):
        asked = temperature, int(top_k), float(top_p), float(min_p)
        theirs = filtered(torch.from_numpy(logits.astype(np.float32)), *asked)
        assert_same_law(theirs, *keep(logits, *asked), int(top_k), float(top_p))


@pytest.mark.parametrize("name", ["spread 0.1", "spread 2.0", "spread 12.0", "ties", "minus infinities"])
def test_probabilities_are_the_same_where_top_p_falls_between_two_tokens(name):
    """Then a token may be in or out by rounding; that shifts the probabilities of the others, and nothing else."""
    logits = torch.from_numpy(ROWS[name].astype(np.float32))
    masses = logits.double().softmax(0).sort(descending=True).values.cumsum(0)
    for top_p in masses[masses < 1 - 1e-6][:60].float().tolist():
        theirs = filtered(logits, 1.0, 0, top_p, 0.0)
        assert_same_law(theirs, *keep(logits.numpy(), 1.0, 0, top_p, 0.0), 0, top_p)
