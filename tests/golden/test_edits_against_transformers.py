"""Bias, penalties and masks at each node of candidate trees are what the logits processors of transformers make of the
text above it, alone and together, and so is what top-k, top-p and min-p keep behind them.

Their order, in transformers' generation and in docs/sampling.md, is: bias (SequenceBias), repetition penalty
(RepetitionPenalty), masks (NoBadWords, MinNewTokensLength), temperature, top-k, top-p, min-p. The edits are made in
float32 by both, so each logit is equal bit for bit. Presence and frequency penalties are not in transformers.

Run: pytest tests/golden/test_edits_against_transformers.py
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.cpu_pass import Case, run_on_cpu, static_inputs
from support.kernel_case import random_trees
from support.processed_row import assert_same_law, filtered, hard_rows
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from tspec.core.dtypes import DType
from tspec.core.sampling import EDITED
from tspec.core.sampling_params import SamplingParams
from tspec.core.shapes import mask_words
from tspec.core.tree import CandidateTrees
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.static_inputs import STATIC_INPUTS
from tspec.kernels.reference.sampling import is_kept
from tspec.runtime.request_tables import RequestTables, make_tables, request_inputs

pytestmark = pytest.mark.golden

VOCAB, NODES = 97, 14
COMMON = 9
"""Texts are of few tokens, so that they repeat themselves and meet the words; each token has a kind of row."""

BIAS = {"logit_bias": {0: 2.5, 3: -100.0, 5: -0.3, 11: 100.0, 60: 1.7, 96: 0.1}}
PENALTY = {"repetition_penalty": 1.3}
LONG_WORDS = [[first, second, 50 + first] for first in range(COMMON) for second in range(COMMON)]
"""After any two tokens, the one before the last forbids another."""
WORDS = {"bad_words": [[60], [2], [1, 4], [4, 4], [0, 1, 96], [*range(20)], *LONG_WORDS]}
MINIMUM = {"min_tokens": 5, "stop_token_ids": [5, 11, 70]}
EDITS = {
    "bias": BIAS,
    "repetition penalty": PENALTY,
    "repetition is rewarded": {"repetition_penalty": 0.6},
    "bad words": WORDS,
    "min_tokens": MINIMUM,
    "bias and penalty": BIAS | PENALTY,
    "bias and bad words": BIAS | WORDS,
    "penalty and masks": PENALTY | WORDS | MINIMUM,
    "everything": BIAS | PENALTY | WORDS | MINIMUM,
}
FILTERS = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.7, "min_p": 0.05},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
)


@dataclass
class Request:
    """A text so far, what is asked of it, and its part of the inputs."""

    params: SamplingParams
    tables: RequestTables
    tokens: list[int]
    num_output: int


def make_request(params: SamplingParams, random: np.random.Generator) -> Request:
    prompt = random.integers(0, COMMON, random.integers(1, 6)).astype(np.int32)
    output = random.integers(0, COMMON, random.integers(0, 5)).tolist()
    tables = make_tables(params, prompt, frozenset(params.stop_token_ids), VOCAB)
    tables.commit(output)
    return Request(params, tables, [*prompt.tolist(), *output], len(output))


def make_table() -> torch.Tensor:
    """Logits after each token, float32 [V, V]: after those of the texts, a row of every kind."""
    kinds = [row for _, row in hard_rows(VOCAB)]
    assert len(kinds) == COMMON
    return torch.from_numpy(np.stack(kinds * (VOCAB // COMMON + 1))[:VOCAB].astype(np.float32))


def run_pass(requests: list[Request], trees: CandidateTrees, table: torch.Tensor) -> dict[str, torch.Tensor]:
    """Edit and filter the logits after every node, with the inputs that the engine fills."""
    build = GraphBuilder("edits")
    edited = build.edit_logits(
        "edited", build.embed("logits", weight("table", table.shape, DType.FLOAT32), DType.FLOAT32)
    )
    graph = build.build([edited, *build.find_kept(edited)])
    inputs = static_inputs(trees, [len(each.tokens) - 1 for each in requests])
    given = request_inputs(requests, EDITED, trees, VOCAB) | {"seed": np.zeros(len(requests), np.int64)}
    given |= {
        "counts": filled(given["counts"], VOCAB),
        "bias": filled(given["bias"], VOCAB),
        "mask": filled(given["mask"], NODES, mask_words(VOCAB)),
    }
    inputs |= {value.name: given[value.name] for value in graph.inputs if value.name in given}
    return run_on_cpu(
        Case(graph.ops, graph.outputs, {"table": table}, inputs, {}, graph.inputs[len(STATIC_INPUTS) :])
    )


def filled(rows, *shape: int) -> np.ndarray:
    """One array of all rows; what a request has not, it does not read."""
    return np.stack([np.full(shape, 1 << 20) if row is None else row for row in rows])


def processors(request: Request) -> LogitsProcessorList:
    """Those that generation makes of the same settings, in its order."""
    params, found = request.params, LogitsProcessorList()
    if params.logit_bias:
        bias = {(token,): value for token, value in params.logit_bias.items()}
        found.append(SequenceBiasLogitsProcessor(bias))
    if params.repetition_penalty != 1:
        found.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.bad_words:
        found.append(NoBadWordsLogitsProcessor([list(word) for word in params.bad_words]))
    if params.min_tokens > 0:
        num_prompt = len(request.tokens) - request.num_output
        stops = list(params.stop_token_ids)
        found.append(MinNewTokensLengthLogitsProcessor(num_prompt, params.min_tokens, stops))
    return found


def texts(request: Request, trees: CandidateTrees, row: int) -> Iterator[list[int]]:
    """The text that stands above each node, itself included."""
    above = [request.tokens]
    for node in range(1, NODES):
        above.append([*above[trees.parents[row, node]], int(trees.tokens[row, node])])
    yield from above


@pytest.mark.parametrize("name", EDITS)
def test_edits_and_what_is_kept_behind_them_are_those_of_transformers(name):
    random = np.random.default_rng([1, *name.encode()])
    requests = [make_request(SamplingParams(**EDITS[name] | each), random) for each in FILTERS * 2]
    shape = random_trees([NODES] * len(requests), seed=2)
    tokens = random.integers(0, COMMON, shape.tokens.shape).astype(np.int32)
    tokens[:, 0] = [each.tokens[-1] for each in requests]
    trees, table = CandidateTrees(tokens, shape.parents, shape.num_nodes), make_table()
    found = run_pass(requests, trees, table)
    edited = found["edited"].reshape(*tokens.shape, VOCAB)
    for row, request in enumerate(requests):
        params = request.params
        asked = params.effective_temperature, params.top_k, params.top_p, params.min_p
        for node, text in enumerate(texts(request, trees, row)):
            expected = processors(request)(torch.tensor([text]), table[text[-1]][None])[0]
            assert torch.equal(edited[row, node], expected), (row, node, text)
            scores = expected / np.float32(params.effective_temperature)
            limits = float(found["threshold"][row, node]), int(found["first_tie"][row, node])
            log_sum = float(found["log_sum"][row, node])
            kept = is_kept(scores, *limits)
            assert_same_law(filtered(expected, *asked), scores, kept, log_sum, params.top_k, params.top_p)
