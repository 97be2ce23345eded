"""Times one op of a model on the CPU: its launches of all layers, as they stand in the bound plan, and nothing else.

So weights come from where they come from in a pass, and a configuration is a few words of the launches. What is
computed is thrown away.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from autotune.pass_case import NODES, max_model_len, nodes_of, pass_inputs, timed_launches
from autotune.tunable import TunableOp, tunable_ops
from tspec.build import BuildOptions, build_engine
from tspec.core.speculative_config import SpeculativeConfig
from tspec.graph.plan import Bucket
from tspec.kernels.cpu import launch_words
from tspec.kernels.cpu.tuned import AttentionTuned, ProductTuned, attention_numbers, product_numbers
from tspec.progress import progress_bar
from tspec.runtime.bind import BoundPlan, look_ahead
from tspec.runtime.executor import CpuExecutor

Tuned = ProductTuned | AttentionTuned


class CpuTimer:
    """A model, bound for each number of NODES, on `num_threads` threads (None: one a usable CPU)."""

    def __init__(self, folder: Path, num_threads: int | None, dtype: str = "auto") -> None:
        options = BuildOptions(
            dtype=dtype, max_model_len=max_model_len(folder), max_num_seqs=1, num_threads=num_threads
        )
        with progress_bar() as on_progress:
            self._engine = build_engine(folder, SpeculativeConfig(method="none"), options, on_progress)
        executor = self._engine.executor
        assert isinstance(executor, CpuExecutor), executor
        self._threads = executor.threads
        self._plans = [self._prepare(executor, nodes) for nodes in NODES]
        self.ops: Mapping[TunableOp, list[int]] = tunable_ops(self._plans[0].plan)
        self._programs: dict[tuple[TunableOp, Tuned], list[np.ndarray]] = {}

    @property
    def num_threads(self) -> int:
        """Threads of a pass."""
        return self._threads.num_threads

    def measure(self, op: TunableOp, tuned: Tuned) -> Sequence[float]:
        """Seconds of the op's launches, one number for each of its cases."""
        key = op, tuned
        if key not in self._programs:
            self._programs[key] = [
                program(bound, op, tuned, self.num_threads)
                for bound in self._plans
                if bound.plan.bucket.nodes in nodes_of(op)
            ]
        seconds = []
        for launches in self._programs[key]:
            start = time.perf_counter()
            self._threads.run(launches)
            seconds.append(time.perf_counter() - start)
        return seconds

    def close(self) -> None:
        """End the threads."""
        self._engine.close()

    def _prepare(self, executor: CpuExecutor, nodes: int) -> BoundPlan:
        """The plan of all outputs for one sequence of `nodes`, after one pass: its inputs and rows are filled."""
        inputs = pass_inputs(nodes, self._engine.config.vocab_size, self._engine.max_model_len)
        executor.run("all", Bucket(1, nodes), inputs)
        return executor.prepare("all", Bucket(1, nodes))


def program(bound: BoundPlan, op: TunableOp, tuned: Tuned, num_threads: int) -> np.ndarray:
    """The launches of `op` alone, int64 [1 + launches, LAUNCH_WORDS], configured as `tuned`; memory is the plan's."""
    numbers = timed_launches(tunable_ops(bound.plan)[op], bound.plan.bucket.nodes)
    launches = bound.launches[[0, *(1 + number for number in numbers)]].copy()
    if isinstance(tuned, AttentionTuned):
        words = attention_numbers(tuned)
    else:
        words = product_numbers(tuned, num_threads)
    _, names = launch_words.OPERANDS[op.kind]
    for name, number in words.items():
        launches[1:, 1 + names.index(name)] = number
    look_ahead(launches)
    return launches
