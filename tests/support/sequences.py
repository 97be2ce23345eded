"""Sequences without an engine: requests as the scheduler sees them, and as tokens come to them."""

from collections.abc import Sequence as List
from typing import Any

import numpy as np

from tspec.core.sampling_params import SamplingParams
from tspec.runtime.request_tables import make_tables
from tspec.runtime.sequence import Sequence

VOCAB = 10


def sequence_of(
    prompt: List[int], *, stops: List[int] = (), priority: int = 0, max_tokens: int = 100, **params: Any
) -> Sequence:
    """A request for a model of VOCAB tokens; `stops` end its text."""
    asked, tokens = SamplingParams(max_tokens=max_tokens, **params), np.array(prompt, np.int32)
    return Sequence(
        prompt=tokens,
        params=asked,
        tables=make_tables(asked, tokens, frozenset(stops), vocab_size=VOCAB),
        stop_ids=frozenset(stops),
        max_length=len(prompt) + max_tokens,
        tokens=list(prompt),
        priority=priority,
    )
