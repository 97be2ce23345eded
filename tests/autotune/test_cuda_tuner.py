"""What tuning on a CUDA device is made of, as far as it runs without one.

Run: pytest tests/autotune/test_cuda_tuner.py
"""

import pytest

from autotune.cuda_tuner import table_of
from autotune.event_clock import EventClock
from autotune.tunable import TunableOp
from tspec.core.dtypes import DType
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
