"""What a request's sampling parameters are for a pass: its row of each static input that the pass reads.

Kept in step with the text: counts and masks follow what was committed. Knows nothing of models and kernels.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tspec.core.errors import ConfigError
from tspec.core.sampling import (
    EDIT_BIAS,
    EDIT_MASK,
    EDIT_PENALTIES,
    EDITED,
    FILTERED,
    FUSED,
    SAMPLING,
)
from tspec.core.sampling_params import MAX_SEED, SamplingParams
from tspec.core.shapes import mask_words
from tspec.core.tree import CandidateTrees
from tspec.runtime.inputs import Rows
from tspec.runtime.masks import TokenMasks


@dataclass(slots=True)
class RequestTables:
    """One request's part of the static inputs.

    temperature  0 for greedy decoding
    seed         of its noise: the one asked for, else one from the system
    sampling     the least of SAMPLING that does what it asks for
    edits        bits of core/sampling.py: which of the tables below it has
    counts       int32 [V]: twice the times a token is in the output, plus 1 if it is in the prompt
    bias         float32 [V]
    masks        which tokens may come after each node
    """

    params: SamplingParams
    temperature: float
    seed: int
    sampling: str
    edits: int = 0
    counts: np.ndarray | None = None
    bias: np.ndarray | None = None
    masks: TokenMasks | None = None

    def commit(self, tokens: Sequence[int]) -> None:
        """Follow the text: `tokens` were appended to it."""
        if self.counts is not None:
            np.add.at(self.counts, list(tokens), 2)
        if self.masks is not None:
            self.masks.commit(tokens)

    def why_no_token(self, tokens: Sequence[int], num_output: int) -> str:
        """Say why no token could come after `tokens`."""
        error = None if self.masks is None else self.masks.why_no_token(tokens, num_output)
        if error is not None:
            return str(error)
        return (
            f"logits after {num_output} tokens of output: got none above minus infinity, need at least one. "
            "Check the weights of the model."
        )


def make_tables(
    params: SamplingParams, prompt: np.ndarray, stop_ids: frozenset[int], vocab_size: int
) -> RequestTables:
    """Return the tables of a request that has emitted nothing yet.

    Errors   ConfigError for a token id that is not in the vocabulary, and for a constraint made for another one
    """
    _check_ids(params, vocab_size)
    seed = secrets.randbelow(MAX_SEED + 1) if params.seed is None else params.seed
    tables = RequestTables(params, params.effective_temperature, seed, FUSED)
    if params.has_filter or params.logprobs is not None:
        tables.sampling = FILTERED
    if params.has_penalties:
        tables.counts = np.zeros(vocab_size, dtype=np.int32)
        tables.counts[prompt] = 1
        tables.edits |= EDIT_PENALTIES
    if params.logit_bias:
        tables.bias = np.zeros(vocab_size, dtype=np.float32)
        tables.bias[list(params.logit_bias)] = list(params.logit_bias.values())
        tables.edits |= EDIT_BIAS
    if params.has_mask:
        tables.masks = TokenMasks(params, stop_ids, vocab_size)
        tables.edits |= EDIT_MASK
    if tables.edits:
        tables.sampling = EDITED
    return tables


class Request(Protocol):
    """What the inputs of a pass are read from."""

    tables: RequestTables
    tokens: list[int]

    @property
    def num_output(self) -> int:
        """Tokens emitted so far."""


@dataclass(slots=True)
class NoRequest:
    """Stands for a row of a pass after whose nodes nobody wants a token. It costs least: greedy, and nothing else."""

    tables: RequestTables = field(
        default_factory=lambda: RequestTables(
            SamplingParams(temperature=0), temperature=0.0, seed=0, sampling=FUSED
        )
    )
    tokens: list[int] = field(default_factory=list)
    num_output: int = 0


def sampling_of(requests: Sequence[Request]) -> str:
    """What a pass has to do so that each request gets what it asks for."""
    return max((each.tables.sampling for each in requests), key=SAMPLING.index)


def request_inputs(
    requests: Sequence[Request], sampling: str, trees: CandidateTrees | None, vocab_size: int
) -> dict[str, Rows]:
    """Return the rows of `requests` in the static inputs of a pass that chooses tokens by `sampling`.

    trees   the candidate trees whose nodes are sampled after; None where each request's newest token alone is
    """
    params = [each.tables.params for each in requests]
    inputs: dict[str, Rows] = {
        "temperature": np.array([each.tables.temperature for each in requests], dtype=np.float32),
        "seed": np.array([each.tables.seed for each in requests], dtype=np.int64),
    }
    if sampling != FUSED:
        inputs |= {
            "top_k": np.array([min(each.top_k, vocab_size) for each in params], dtype=np.int32),
            "top_p": np.array([each.top_p for each in params], dtype=np.float32),
            "min_p": np.array([each.min_p for each in params], dtype=np.float32),
            "num_logprobs": logprob_counts([each.logprobs for each in params]),
        }
    if sampling == EDITED:
        inputs |= {
            "edits": np.array([_edits(each) for each in requests], dtype=np.int32),
            "penalties": np.array([_penalties(each) for each in params], dtype=np.float32),
            "counts": [each.tables.counts for each in requests],
            "bias": [each.tables.bias for each in requests],
            "mask": [_mask(each, row, trees, vocab_size) for row, each in enumerate(requests)],
        }
    return inputs


def logprob_counts(wanted: Sequence[int | None]) -> np.ndarray:
    """Alternatives asked for a row, -1 where not even the token's own log-probability is; int32 [B]."""
    return np.array([-1 if count is None else count for count in wanted], dtype=np.int32)


def _has_mask(request: Request) -> bool:
    """Whether some token may be forbidden at this place: min_tokens alone forbids none once it is reached."""
    tables = request.tables
    forbids = tables.params.has_forbidden or request.num_output < tables.params.min_tokens
    return tables.masks is not None and forbids


def _edits(request: Request) -> int:
    """The edits that do something at this place of the text."""
    edits = request.tables.edits
    return edits if _has_mask(request) else edits & ~EDIT_MASK


def _penalties(params: SamplingParams) -> tuple[float, float, float]:
    return params.repetition_penalty, params.presence_penalty, params.frequency_penalty


def _mask(request: Request, row: int, trees: CandidateTrees | None, vocab_size: int) -> np.ndarray | None:
    """The mask of each node of row `row`, or of the newest token."""
    masks = request.tables.masks
    if masks is None or not _has_mask(request):
        return None
    count = 1 if trees is None else int(trees.num_nodes[row])
    out = np.zeros((count, mask_words(vocab_size)), dtype=np.int32)
    if trees is None:
        masks.fill_root(out[0], request.tokens, request.num_output)
    else:
        node_tokens, parents = trees.tokens[row], trees.parents[row]
        masks.fill(out, request.tokens, request.num_output, node_tokens, parents, count)
    return out


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    named = {
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words": [token for word in params.bad_words if not isinstance(word, str) for token in word],
        "stop_token_ids": params.stop_token_ids,
    }
    for name, tokens in named.items():
        for token in tokens:
            if token >= vocab_size:
                raise ConfigError(
                    f"{name} token id",
                    got=token,
                    need=f"ids from 0 to {vocab_size - 1}",
                    fix="Use the tokenizer of this checkpoint.",
                )
