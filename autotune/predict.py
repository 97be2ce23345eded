"""Predicted times of passes, from a plan's bytes, flops and launches, and the speed-up that they allow. No weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from autotune.devices import Machine
from autotune.models import part_of
from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.graph.ir import Graph
from tspec.graph.lower import lower
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket, Plan
from tspec.models import build_graph

HEAD_VOCAB = 32768
"""Tokens that the head of a predicted proposer can say, as published EAGLE-3 heads have it."""
REDUCES_A_LAYER = 2
"""All-reduces of rows: behind the attention's output and behind the MLP."""


class PredictedModel:
    """A model on a machine: what a pass over some rows and nodes takes."""

    def __init__(self, config: ModelConfig, machine: Machine) -> None:
        """Errors: ConfigError where the model cannot be cut into so many parts."""
        self.config, self.machine = config, machine
        self._part = part_of(config, machine.count)

    @cached_property
    def _graph(self) -> Graph:
        activations = DType.FLOAT32 if self.machine.name == "cpu" else self.config.dtype
        return fuse(build_graph(self._part, activations=activations))

    def plan(self, rows: int, nodes: int, context: int) -> Plan:
        """The plan of one device."""
        return lower(self._graph, Bucket(rows, nodes), max_model_len=max(context, 1), context=context)

    def pass_us(self, rows: int, nodes: int, context: int) -> float:
        """Microseconds of a verify pass over `rows` sequences with `nodes` nodes each behind `context` tokens."""
        plan = self.plan(rows, nodes, context)
        row_bytes = rows * nodes * self.config.hidden_size * self.config.dtype.itemsize_bytes
        reduces = REDUCES_A_LAYER * self.config.num_layers + 1  # and the choice of each token
        return sum(
            self.machine.launch_time_us(each) for each in plan.launches
        ) + reduces * self.machine.reduce_us(row_bytes)

    def memory_gb(self, rows: int, context: int) -> float:
        """Weights, keys and values of one device, in GB."""
        plan = self.plan(rows, 1, context)
        weights = sum(
            prod(each.shape) * each.dtype.itemsize_bytes
            for each in plan.weights.values()
            if each.use != "derived"
        )
        part = self._part
        a_token = 2 * part.num_layers * part.num_kv_heads * part.head_dim * part.dtype.itemsize_bytes
        return (weights + rows * context * a_token) / 1e9


def eagle_head(config: ModelConfig) -> ModelConfig:
    """A proposer of one layer like the target's, as EAGLE-3 heads are."""
    return replace(
        config,
        num_layers=1,
        vocab_size=min(config.vocab_size, HEAD_VOCAB),
        tie_word_embeddings=False,
        sliding_windows=config.sliding_windows[:1],
    )


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """What a chain of so many candidates gives over plain decoding."""

    candidates: int
    value: float


class Curves:
    """Speed-up by candidates, chance and sequences; passes are predicted once.

    draft   proposes one candidate a pass of its own; None: candidates cost nothing, as those of lookups
    """

    def __init__(self, target: PredictedModel, draft: PredictedModel | None, context: int) -> None:
        self._target, self._draft, self._context = target, draft, context
        self._pass_us: dict[tuple[int, int], float] = {}

    def pass_us(self, rows: int, nodes: int) -> float:
        """See PredictedModel.pass_us."""
        key = rows, nodes
        if key not in self._pass_us:
            self._pass_us[key] = self._target.pass_us(rows, nodes, self._context)
        return self._pass_us[key]

    def draft_us(self, rows: int) -> float:
        """Microseconds of one level."""
        return 0.0 if self._draft is None else self._draft.pass_us(rows, 1, self._context)

    def speed_up(self, rows: int, candidates: int, chance: float) -> float:
        """Tokens a round over its time, in plain passes (arXiv:2211.17192, equation 1 and theorem 3.8)."""
        tokens = sum(chance**depth for depth in range(candidates + 1))
        round_us = self.pass_us(rows, candidates + 1) + candidates * self.draft_us(rows)
        return tokens * self.pass_us(rows, 1) / round_us

    def best(self, rows: int, chance: float, candidates: Sequence[int]) -> SpeedUp:
        """The best chain of those lengths; 0 candidates and 1 where none is faster than plain decoding."""
        found = [SpeedUp(0, 1.0), *(SpeedUp(each, self.speed_up(rows, each, chance)) for each in candidates)]
        return max(found, key=lambda each: each.value)
