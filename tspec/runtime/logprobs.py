"""From the log-probabilities that a pass puts out to those that a request gets."""

from collections.abc import Mapping

import numpy as np

from tspec.core.sampling import TokenLogprobs


def read_logprobs(
    outputs: Mapping[str, np.ndarray], row: int, tokens: np.ndarray, count: int
) -> list[TokenLogprobs]:
    """Return one entry for each of `tokens` int [n], the first chosen ones of row `row`, with `count` alternatives.

    outputs   logprobs float32 [B, T], top_tokens int32 [B, T, N], top_logprobs float32 [B, T, N] of the pass
    """
    entries = []
    for place, token in enumerate(tokens.tolist()):
        ids = outputs["top_tokens"][row, place, :count].tolist()
        values = outputs["top_logprobs"][row, place, :count].tolist()
        top = tuple((each, value) for each, value in zip(ids, values, strict=True) if each >= 0)
        entries.append(TokenLogprobs(token, float(outputs["logprobs"][row, place]), top))
    return entries
