"""What a pass runs on, and how it gets into the static inputs of a bucket. The same for every backend."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tspec.core.tree import CandidateTrees, fill_ancestors
from tspec.graph.plan import Bucket, Plan

PlanMaker = Callable[[str, Bucket], Plan]
"""From a kind of pass ("all", "last", "none", "logits") and a bucket to its plan."""


@dataclass(frozen=True, slots=True)
class PassInputs:
    """What one pass runs on, a row a sequence.

    trees        the candidate trees, or chunks of a prompt as chains
    prefix_len   int32 [B]  tokens whose keys and values are committed
    block_table  int32 [B, blocks]
    """

    trees: CandidateTrees
    prefix_len: np.ndarray
    block_table: np.ndarray


class Executor(Protocol):
    """What the loop needs of a backend."""

    num_blocks: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, which a pass reads once."""

    def run(self, kind: str, bucket: Bucket, inputs: PassInputs) -> Mapping[str, np.ndarray]:
        """Run one pass ("all", "last", "none", "logits"); the result is valid until the next pass."""

    def close(self) -> None:
        """Give back threads and memory; no more passes."""


def fill_inputs(static: Mapping[str, np.ndarray], bucket: Bucket, inputs: PassInputs) -> None:
    """Write `inputs` to the static inputs of `bucket`. Rows past those of `inputs` get no nodes."""
    trees = inputs.trees
    rows, width = trees.tokens.shape
    width = min(width, bucket.nodes)
    static["num_nodes"][:rows] = trees.num_nodes
    static["num_nodes"][rows:] = 0
    static["tokens"][:rows, :width] = trees.tokens[:, :width]
    static["prefix_len"][:rows] = inputs.prefix_len
    static["block_table"][:rows, : inputs.block_table.shape[1]] = inputs.block_table
    fill_ancestors(trees.parents, trees.num_nodes, static["ancestors"], static["depth"])
