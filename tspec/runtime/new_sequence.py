"""From a request to a sequence that can be queued; refuses what could never run."""

from collections.abc import Sequence as List
from typing import NamedTuple

import numpy as np

from tspec.core.config import ModelConfig
from tspec.core.errors import CapacityError
from tspec.core.sampling_params import SamplingParams
from tspec.core.shapes import blocks_for
from tspec.runtime.prompt import read_prompt
from tspec.runtime.request_tables import make_tables
from tspec.runtime.sequence import Sequence
from tspec.runtime.text import OutputText


class Limits(NamedTuple):
    """What a request has to fit into."""

    config: ModelConfig
    max_model_len: int
    num_blocks: int


def new_sequence(
    prompt: List[int], params: SamplingParams, limits: Limits, *, priority: int, text: OutputText | None
) -> Sequence:
    """Return a sequence that has not been queued.

    Errors   ConfigError for an empty prompt, or one that is not all ids of the vocabulary, and for parameters that
             name other ids; CapacityError for a prompt that leaves no room for a token in the context, or in the
             KV blocks
    """
    config = limits.config
    tokens = read_prompt(prompt, config.vocab_size, limits.max_model_len)
    eos = () if params.ignore_eos else config.eos_token_ids
    stop_ids = frozenset((*eos, *params.stop_token_ids))
    sequence = Sequence(
        prompt=tokens.astype(np.int32),
        params=params,
        stop_ids=stop_ids,
        max_length=min(len(tokens) + params.max_tokens, limits.max_model_len),
        tokens=tokens.tolist(),
        tables=make_tables(params, tokens, stop_ids, config.vocab_size),
        priority=priority,
        text=text,
    )
    if params.max_tokens > 0 and blocks_for(sequence.max_length) > limits.num_blocks:
        raise CapacityError(
            "KV blocks for a request",
            got=f"{limits.num_blocks} blocks in all",
            need=blocks_for(sequence.max_length),
            fix="Lower max_tokens, shorten the prompt or raise kv_cache_mib.",
        )
    return sequence
