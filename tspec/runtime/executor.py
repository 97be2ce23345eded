"""The CPU executor: plans bound to memory and threads, one for each kind of pass and bucket it has met."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tspec.core.tree import CandidateTrees, fill_ancestors
from tspec.graph.plan import Bucket, Plan
from tspec.runtime.bind import BoundPlan, bind_plan
from tspec.runtime.kv_memory import allocate_states
from tspec.runtime.threads import ThreadPool
from tspec.runtime.weights import PackedWeights

PlanMaker = Callable[[str, Bucket], Plan]


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


class CpuExecutor:
    """Runs passes. Holds the weights, the KV memory, the threads and the bound plans of one model."""

    def __init__(
        self, make_plan: PlanMaker, weights: PackedWeights, num_blocks: int, threads: ThreadPool
    ) -> None:
        self._make_plan = make_plan
        self._weights = weights
        self._states: Mapping[str, np.ndarray] | None = None
        self._threads = threads
        self._bound: dict[tuple[str, Bucket], BoundPlan] = {}
        self.num_blocks = num_blocks

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights."""
        return self._weights.size_bytes

    def prepare(self, kind: str, bucket: Bucket) -> BoundPlan:
        """Return the bound plan of a kind of pass ("all", "last", "none", "logits") and bucket."""
        key = kind, bucket
        if key not in self._bound:
            plan = self._make_plan(kind, bucket)
            if self._states is None:
                self._states = allocate_states(plan.states, self.num_blocks)
            self._bound[key] = bind_plan(plan, self._weights, self._states, self._threads.num_threads)
        return self._bound[key]

    def run(self, kind: str, bucket: Bucket, inputs: PassInputs) -> dict[str, np.ndarray]:
        """Run one pass; the result is views of the plan's outputs, valid until its next pass.

        Rows of `bucket` past those of `inputs` have no nodes. Nothing is allocated once the plan is bound.
        """
        bound = self.prepare(kind, bucket)
        static, trees = bound.inputs, inputs.trees
        rows, width = trees.tokens.shape
        width = min(width, bucket.nodes)
        static["num_nodes"][:rows] = trees.num_nodes
        static["num_nodes"][rows:] = 0
        static["tokens"][:rows, :width] = trees.tokens[:, :width]
        static["prefix_len"][:rows] = inputs.prefix_len
        static["block_table"][:rows, : inputs.block_table.shape[1]] = inputs.block_table
        fill_ancestors(trees.parents, trees.num_nodes, static["ancestors"], static["depth"])
        self._threads.run(bound.launches)
        return bound.outputs

    def warm_up(self) -> None:
        """Run every bound plan once on no sequences: compiles the kernels, or loads them from the cache."""
        for bound in self._bound.values():
            bound.inputs["num_nodes"][:] = 0
            self._threads.run(bound.launches)

    def close(self) -> None:
        """End the threads; the executor runs no more passes."""
        self._threads.close()
