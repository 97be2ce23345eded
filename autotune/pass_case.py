"""What every timer of ops runs: one sequence, a chain of some nodes behind a context that is half a usual one."""

from pathlib import Path

import numpy as np

from tspec.build import load_config
from tspec.core.rope import context_limit
from tspec.core.shapes import blocks_for
from tspec.core.tree import chain
from tspec.runtime.inputs import PassInputs

NODES = (1, 8, 64)
"""A case each: plain decoding, a tree that pays, a chunk of a prompt."""

CONTEXT = 500
"""Committed tokens that attention sees, where the model has room for so many and the nodes."""


def max_model_len(folder: Path) -> int:
    """What a model is loaded for."""
    return min(CONTEXT + NODES[-1], context_limit(load_config(folder)))


def pass_inputs(nodes: int, vocab: int, max_len: int) -> PassInputs:
    """A chain of `nodes` behind all the context that a model loaded for `max_len` has room for."""
    table = np.arange(blocks_for(max_len), dtype=np.int32)[None]
    context = np.array([max(max_len - NODES[-1], 0)], np.int32)
    return PassInputs(chain(np.arange(nodes) % vocab), context, table)
