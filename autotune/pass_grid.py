"""Times verify passes over numbers of sequences, nodes and tokens of context; and the launches of one pass by kind."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tspec.core.shapes import BLOCK_TOKENS, blocks_for
from tspec.graph.plan import Bucket
from tspec.runtime.executor import CpuExecutor
from tspec.runtime.inputs import Executor
from tspec.runtime.pass_times import pass_s

ROWS = (1, 2, 4, 8)
NODES = (1, 2, 3, 4, 6, 8, 9, 12, 16, 24, 32)
CONTEXTS = (0, 1024)
MOST_FLAT_NODES = 64
"""Nodes of all sequences together, beyond which nothing is timed: no tree there pays."""


@dataclass(frozen=True, slots=True)
class TimedPass:
    """Median seconds of a pass over `rows` sequences with `nodes` nodes each behind `context` tokens."""

    rows: int
    nodes: int
    context: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


def time_grid(
    executor: Executor, max_rows: int, max_nodes: int, max_context: int, repeats: int
) -> list[TimedPass]:
    """Time passes in turns, so that a slow moment does not meet one of them alone.

    Uses KV blocks from 0 on, so nobody else may yet.
    """
    most_blocks = executor.num_blocks
    cases = [
        (rows, nodes, context)
        for context in sorted({min(each, max_context // BLOCK_TOKENS * BLOCK_TOKENS) for each in CONTEXTS})
        for rows in ROWS
        for nodes in NODES
        if rows <= max_rows
        and nodes <= max_nodes
        and rows * nodes <= MOST_FLAT_NODES
        and rows * blocks_for(context + nodes) <= most_blocks
    ]
    seconds: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for turn in range(1 + repeats):
        for rows, nodes, context in cases:
            taken = pass_s(executor, nodes, context, rows)
            if turn:  # the first binds and warms
                seconds[rows, nodes, context].append(taken)
    return [TimedPass(*case, float(np.median(seconds[case]))) for case in cases]


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """All launches of a pass that do the same work: their number, the shape of their weights, and what they take.

    bytes_moved, flops, seconds   of all of them together
    """

    kind: str
    shape: tuple[int, ...]
    count: int
    bytes_moved: int
    flops: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


def time_kernels(executor: CpuExecutor, num_nodes: int, repeats: int) -> list[TimedKernel]:
    """Time the launches of a pass over one sequence by kind and weights, each group by itself, in turns."""
    bucket = Bucket(1, num_nodes)
    plan = executor.prepare("all", bucket).plan
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for launch in plan.launches:
        shapes = [
            plan.weights[name].shape
            for name in launch.inputs
            if name in plan.weights
            and len(plan.weights[name].shape) == 2
            and plan.weights[name].use != "derived"
        ]
        groups[launch.kind, shapes[-1] if shapes else ()].append(launch.number)
    seconds: dict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(list)
    for turn in range(1 + repeats):
        pass_s(executor, num_nodes, 0)
        for group, numbers in groups.items():
            start_s = time.perf_counter()
            executor.run_again("all", bucket, numbers)
            if turn:
                seconds[group].append(time.perf_counter() - start_s)
    return [
        TimedKernel(
            kind=kind,
            shape=shape,
            count=len(numbers),
            bytes_moved=sum(plan.launches[number].bytes_moved for number in numbers),
            flops=sum(plan.launches[number].flops for number in numbers),
            seconds=float(np.median(seconds[kind, shape])),
        )
        for (kind, shape), numbers in groups.items()
    ]


def growth_by_nodes(passes: Sequence[TimedPass], rows: int, context: int) -> dict[int, float]:
    """Seconds by nodes of the passes of so many sequences on such a context."""
    return {each.nodes: each.seconds for each in passes if (each.rows, each.context) == (rows, context)}
