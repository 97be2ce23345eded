"""The CPU executor: plans bound to memory and threads, one for each kind of pass and bucket it has met."""

from collections.abc import Mapping, Sequence

import numpy as np

from tspec.graph.plan import Bucket
from tspec.kernels.cpu.tuned import CpuTable
from tspec.runtime.bind import NOT_TUNED, BoundPlan, bind_plan
from tspec.runtime.inputs import COUNTS, PassInputs, PlanMaker, fill_inputs
from tspec.runtime.kv_memory import allocate_states
from tspec.runtime.threads import ThreadPool
from tspec.runtime.weights import PackedWeights


class CpuExecutor:
    """Runs passes. Holds the weights, the KV memory, the threads and the bound plans of one model."""

    def __init__(
        self,
        make_plan: PlanMaker,
        weights: PackedWeights,
        num_blocks: int,
        threads: ThreadPool,
        states: Mapping[str, np.ndarray] | None = None,
        tuned: CpuTable = NOT_TUNED,
    ) -> None:
        """`states` are those of its plans that another executor's write; `tuned` configures their launches."""
        self._make_plan = make_plan
        self.weights = weights
        self.states: dict[str, np.ndarray] = dict(states or {})
        self.threads = threads
        self.tuned = tuned
        self._bound: dict[tuple[str, Bucket], BoundPlan] = {}
        self.num_blocks = num_blocks

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights."""
        return self.weights.size_bytes

    def prepare(self, kind: str, bucket: Bucket) -> BoundPlan:
        """Return the bound plan of a kind of pass (models.PASS_KINDS) and bucket."""
        key = kind, bucket
        if key not in self._bound:
            plan = self._make_plan(kind, bucket)
            missing = {name: spec for name, spec in plan.states.items() if name not in self.states}
            self.states |= allocate_states(missing, self.num_blocks)
            self._bound[key] = bind_plan(
                plan, self.weights, self.states, self.threads.num_threads, self.tuned
            )
        return self._bound[key]

    def run(self, kind: str, bucket: Bucket, inputs: PassInputs) -> dict[str, np.ndarray]:
        """Run one pass; the result is views of the plan's outputs, valid until its next pass.

        Rows of `bucket` past those of `inputs` have no nodes. Nothing is allocated once the plan is bound.
        """
        bound = self.prepare(kind, bucket)
        fill_inputs(bound.inputs, bucket, inputs)
        self.threads.run(bound.launches)
        return bound.outputs

    def run_again(self, kind: str, bucket: Bucket, numbers: Sequence[int]) -> None:
        """Run some launches of a plan once more, on what its last pass has left in memory: to time them."""
        bound = self.prepare(kind, bucket)
        self.threads.run(bound.launches[[0, *(number + 1 for number in numbers)]])  # the first numbers rows

    def warm_up(self) -> None:
        """Run every bound plan once on no sequences: compiles the kernels, or loads them from the cache."""
        for bound in self._bound.values():
            for name in COUNTS:
                if name in bound.inputs:
                    bound.inputs[name][:] = 0
            self.threads.run(bound.launches)

    def close(self) -> None:
        """End the threads; the executor runs no more passes."""
        self.threads.close()
