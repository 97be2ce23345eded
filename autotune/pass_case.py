"""What every timer of ops runs: one sequence, a chain of some nodes behind a context that is half a usual one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from autotune.tunable import TunableOp
from tspec.build import load_config
from tspec.core.rope import context_limit
from tspec.core.shapes import blocks_for
from tspec.core.tree import chain
from tspec.kernels.tuned_ops import HEAD
from tspec.runtime.inputs import PassInputs

Launch = TypeVar("Launch")

NODES = (1, 8, 64)
"""A case each: plain decoding, a tree that pays, a chunk of a prompt."""

SHARE_OF_LAYERS = 8
"""Of an op's launches, one in so many is enough for a chunk: it is bound by arithmetic, and would take most time."""

CONTEXT = 500
"""Committed tokens that attention sees, where the model has room for so many and the nodes."""


def nodes_of(op: TunableOp) -> tuple[int, ...]:
    """The cases of an op. The head runs for the last token of a chunk alone."""
    return NODES[:-1] if op.op == HEAD else NODES


def timed_launches(launches: Sequence[Launch], nodes: int) -> Sequence[Launch]:
    """Of an op's launches those that are timed for so many nodes."""
    return launches if nodes < NODES[-1] else launches[: -(-len(launches) // SHARE_OF_LAYERS)]


def max_model_len(folder: Path) -> int:
    """What a model is loaded for."""
    return min(CONTEXT + NODES[-1], context_limit(load_config(folder)))


def pass_inputs(nodes: int, vocab: int, max_len: int) -> PassInputs:
    """A chain of `nodes` behind all the context that a model loaded for `max_len` has room for."""
    table = np.arange(blocks_for(max_len), dtype=np.int32)[None]
    context = np.array([max(max_len - NODES[-1], 0)], np.int32)
    return PassInputs(chain(np.arange(nodes) % vocab), context, table)
