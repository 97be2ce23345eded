"""Roofline times, and the table that shows them.

Run: pytest tests/graph/test_roofline.py
"""

import pytest
from support.graphs import tiny_config

from tspec.core.dtypes import DType
from tspec.core.errors import ConfigError
from tspec.graph.lower import lower
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket, Launch
from tspec.graph.roofline import DEVICES, Device, find_device, launch_us, plan_us, render
from tspec.models import build_graph

DEVICE = Device("toy", bandwidth_gb_s=10.0, peak_tflops=1.0)


def launch(bytes_moved: int, flops: int) -> Launch:
    return Launch(0, "linear", ("y",), ("x", "w", None), {}, "T", bytes_moved, flops)


def test_a_launch_takes_the_time_of_its_slower_side():
    assert launch_us(launch(10_000, 1), DEVICE) == pytest.approx(1.0)
    assert launch_us(launch(1, 3_000_000), DEVICE) == pytest.approx(3.0)


def test_a_plan_takes_the_sum_of_its_launches():
    plan = lower(fuse(build_graph(tiny_config())), Bucket(1, 4), max_model_len=100)
    assert plan_us(plan, DEVICE) == pytest.approx(sum(launch_us(each, DEVICE) for each in plan.launches))


def test_a_plan_renders_one_launch_a_line_then_totals():
    plan = lower(fuse(build_graph(tiny_config(num_layers=1))), Bucket(1, 4), max_model_len=100)
    lines = render(plan, DEVICE).splitlines()
    assert lines[0] == "plan 1x4 on toy"
    assert lines[1].split() == ["kind", "output", "MiB", "Mflop", "us"]
    assert lines[3] == (
        "   1  norm_linear          layers.0.qkv                    0.007         0.01       0.76"
    )
    kinds = {each.kind for each in plan.launches}
    assert len(lines) == 2 + len(plan.launches) + len(kinds) + 2
    assert lines[-2].split()[:3] == ["plan", str(len(plan.launches)), "launches"]
    assert lines[-1].startswith("arena 0.0")


def test_devices_are_found_by_name():
    assert find_device("h200") is DEVICES["h200"]
    with pytest.raises(ConfigError, match="device: got 'tpu', need one of cpu, a100, h100, h200"):
        find_device("tpu")


@pytest.mark.parametrize("nodes", [1, 16])
def test_a_large_model_on_a_fast_device_is_bound_by_its_weights(nodes):
    """Llama-3.1-8B in bfloat16: 15.0 GB of weights, at 4.3 TB/s 3.5 ms; five launches a layer, four around them."""
    config = tiny_config(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        dtype=DType.BFLOAT16,
    )
    graph = fuse(build_graph(config, activations=DType.BFLOAT16))
    plan = lower(graph, Bucket(1, nodes), max_model_len=8192)
    assert len(plan.launches) == 5 * 32 + 4
    moved = sum(launch.bytes_moved for launch in plan.launches)
    assert 15.0e9 < moved < 15.1e9
    assert plan_us(plan, DEVICES["h200"]) == pytest.approx(moved / 4.3e6, rel=0.02)
