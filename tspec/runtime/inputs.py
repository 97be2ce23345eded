"""What a pass runs on, and how it gets into the static inputs of a bucket. The same for every backend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tspec.core.tree import CandidateTrees, fill_ancestors
from tspec.graph.plan import Bucket, Plan

PlanMaker = Callable[[str, Bucket], Plan]
"""From a kind of pass (its name in models.PASS_KINDS) and a bucket to its plan."""

COUNTS = ("num_nodes", "level_nodes")
"""Static inputs that say how many nodes of a row are live: 0 for one that is not used."""

Rows = np.ndarray | Sequence[np.ndarray | None]
"""An array with a row a sequence; or one array a sequence, None where the sequence has none."""


@dataclass(frozen=True, slots=True)
class PassInputs:
    """What one pass runs on, a row a sequence.

    trees        the candidate trees, or chunks of a prompt as chains
    prefix_len   int32 [B]  tokens whose keys and values are committed
    block_table  int32 [B, blocks]
    requests     by the names of graph/static_inputs.py; a plan takes what it reads. None of a row: left as it was
    """

    trees: CandidateTrees
    prefix_len: np.ndarray
    block_table: np.ndarray
    requests: Mapping[str, Rows] = field(default_factory=dict)


class Executor(Protocol):
    """What the loop needs of a backend."""

    num_blocks: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, which a pass reads once."""

    def run(self, kind: str, bucket: Bucket, inputs: PassInputs) -> Mapping[str, np.ndarray]:
        """Run one pass of a kind (models.PASS_KINDS); the result is valid until the next pass."""

    def close(self) -> None:
        """Give back threads and memory; no more passes."""


def fill_inputs(static: Mapping[str, np.ndarray], bucket: Bucket, inputs: PassInputs) -> None:
    """Write `inputs` to the static inputs of `bucket`. Rows past those of `inputs` get no nodes."""
    trees = inputs.trees
    rows, width = trees.tokens.shape
    width = min(width, bucket.nodes)
    static["num_nodes"][:rows] = trees.num_nodes
    for name in COUNTS:
        if name in static:
            static[name][rows:] = 0
    static["tokens"][:rows, :width] = trees.tokens[:, :width]
    static["prefix_len"][:rows] = inputs.prefix_len
    static["block_table"][:rows, : inputs.block_table.shape[1]] = inputs.block_table
    for name, lines in inputs.requests.items():
        if name in static:
            _fill_rows(static[name], lines)
    fill_ancestors(trees.parents, trees.num_nodes, static["ancestors"], static["depth"])


def _fill_rows(static: np.ndarray, lines: Rows) -> None:
    """Write a row a sequence. Lines may be shorter than the bucket's in any dim."""
    if isinstance(lines, np.ndarray):
        static[tuple(slice(size) for size in lines.shape)] = lines
        return
    for row, line in enumerate(lines):
        if line is not None:
            static[row][tuple(slice(size) for size in line.shape)] = line
