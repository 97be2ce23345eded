"""What tuning on a CUDA device is made of, as far as it runs without one.

Run: pytest tests/autotune/test_cuda_tuner.py
"""

import pytest
import torch
from support.interpreted import MAX_MODEL_LEN, device_executor
from support.stubbed import record_launches
from support.tiny_models import tiny_checkpoint

from autotune.cuda_tuner import bind_op, table_of
from autotune.event_clock import EventClock
from autotune.pass_case import pass_inputs
from autotune.tunable import TunableOp, tunable_ops
from tspec.core.dtypes import DType
from tspec.graph.plan import Bucket
from tspec.kernels.cuda.tuned import AttentionTuned, Tuned

BF16 = DType.BFLOAT16


class Device:
    """Stands for torch.cuda: an event's time is that of the launches before it, and comes with a synchronisation."""

    def __init__(self):
        self.now_ms = self.done_ms = 0.0
        self.queued = []

    def Event(self, enable_timing):
        device = self

        class Event:
            def record(self):
                self.at_ms = device.now_ms

            def elapsed_time(self, end):
                assert end.at_ms <= device.done_ms, "read before the device was done"
                return end.at_ms - self.at_ms

        assert enable_timing
        return Event()

    def synchronize(self):
        self.done_ms = self.now_ms

    def launch(self, name, ms):
        self.queued.append(name)
        self.now_ms += ms


def test_a_time_is_that_of_the_launches_after_the_flush():
    device = Device()
    clock = EventClock(device, lambda: device.launch("flush", 100.0))
    times = [clock.seconds(lambda ms=ms: device.launch("op", ms)) for ms in (3.0, 5.0)]
    assert times == pytest.approx([0.003, 0.005])
    assert device.queued == ["flush", "op"] * 2


def test_a_table_has_the_one_configuration_that_is_measured():
    tuned = Tuned(64, 64, 2, 4, 6)
    op = TunableOp("linear_add", "linear_add", BF16, (("k", 576), ("n", 1536)))
    table = table_of(op, tuned)
    assert table.for_product("linear_add", 1536, 576, BF16, "sm_90") == tuned
    assert table.for_product("linear_add", 576, 1536, BF16, "sm_90") != tuned
    heads = (("head_dim", 64), ("num_heads", 9), ("num_kv_heads", 3))
    attention = TunableOp("rope_attention", "rope_attention", BF16, heads)
    chosen = AttentionTuned(num_warps=8)
    assert table_of(attention, chosen).for_attention(9, 3, 64, BF16, 1, "sm_90") == chosen


@pytest.mark.parametrize("nodes", [1, 8])
def test_an_op_is_launched_alone_with_its_configuration_and_its_inputs_are_there(
    tmp_path, monkeypatch, nodes
):
    tiny_checkpoint(tmp_path, "qwen3", tie=True, dtype=torch.bfloat16)
    executor = device_executor(tmp_path)
    ops = tunable_ops(executor.bind("all", Bucket(1, nodes)).plan)
    product = next(op for op in ops if op.op == "linear_add")
    attention = next(op for op in ops if op.is_attention)
    launched = record_launches(monkeypatch)
    for op, tuned in (
        (product, Tuned(128, 32, 1, 4, 2)),
        (attention, AttentionTuned(num_warps=8, num_stages=1)),
    ):
        bound, launches = bind_op(executor, op, tuned, nodes, pass_inputs(nodes, 200, MAX_MODEL_LEN))
        for launch in launches:
            launch()
        assert len(launched) == len(ops[op])
        options = launched[-1].options
        assert options["num_stages"] == tuned.num_stages
        assert op.is_attention or options["BLOCK_N"] == 128
        assert bound.inputs.tensors["prefix_len"].tolist() == [MAX_MODEL_LEN - 64]
        assert bound.inputs.tensors["num_nodes"].tolist() == [nodes]
        launched.clear()
