"""Which passes and launches are timed.

Run: pytest tests/autotune/test_pass_grid.py
"""

import numpy as np
import pytest

from autotune.pass_grid import MOST_FLAT_NODES, TimedPass, growth_by_nodes, time_grid, time_kernels
from tspec.core.speculative_config import SpeculativeConfig
from tspec.graph.plan import Bucket


class CountingExecutor:
    """Notes the passes that it is asked for."""

    def __init__(self, num_blocks):
        self.num_blocks, self.asked = num_blocks, []

    def run(self, kind, bucket, inputs):
        table = inputs.block_table
        assert table.max() < self.num_blocks and len(np.unique(table)) == table.size
        self.asked.append((len(table), int(inputs.trees.num_nodes[0]), int(inputs.prefix_len[0])))
        return {}


def test_each_case_is_timed_in_each_turn_and_blocks_are_there():
    executor = CountingExecutor(num_blocks=20)
    found = time_grid(executor, 4, 16, 500, repeats=3)
    cases = [(each.rows, each.nodes, each.context) for each in found]
    assert executor.asked == cases * 4
    assert {context for _, _, context in cases} == {0, 448}
    assert max(rows for rows, _, context in cases if context == 0) == 4
    assert max(rows for rows, _, context in cases if context) == 2  # eight blocks each
    assert all(rows * nodes <= MOST_FLAT_NODES for rows, nodes, _ in cases)
    assert all(each.seconds > 0 for each in found)


def test_without_room_for_a_context_there_is_none():
    assert {each.context for each in time_grid(CountingExecutor(4), 1, 8, 0, repeats=1)} == {0}


def test_growth_is_of_one_number_of_sequences_and_one_context():
    passes = [
        TimedPass(1, 1, 0, 0.1),
        TimedPass(1, 2, 0, 0.2),
        TimedPass(2, 1, 0, 0.3),
        TimedPass(1, 1, 64, 0.4),
    ]
    assert growth_by_nodes(passes, rows=1, context=0) == {1: 0.1, 2: 0.2}


def test_launches_of_a_pass_are_all_timed_once(job):
    engine = job.open(SpeculativeConfig("none"))
    try:
        executor = engine.opened().executor
        kernels = time_kernels(executor, 4, repeats=1)
        launches = executor.prepare("all", Bucket(1, 4)).plan.launches
    finally:
        engine.close()
    assert sum(each.count for each in kernels) == len(launches)
    for name in ("bytes_moved", "flops"):
        whole = sum(getattr(launch, name) for launch in launches)
        assert sum(getattr(each, name) for each in kernels) == pytest.approx(whole)
    down = [each for each in kernels if each.kind == "linear_add"]
    assert sorted(each.count for each in down) == [3, 3]  # attention's output and the MLP's, of three layers
    assert all(each.seconds > 0 for each in kernels)
