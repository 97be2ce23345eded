"""Predicted passes follow from bytes, flops and launches, on one device and on several.

Run: pytest tests/autotune/test_predict.py
"""

import json
import math

import pytest
from support.command_line import run
from support.graphs import tiny_config

from autotune.devices import MACHINES, REDUCE_US, Machine, find_machine, measured_cpu
from autotune.models import MODELS, find_model, part_of
from autotune.predict import Curves, PredictedModel, eagle_head
from tspec.core.errors import ConfigError
from tspec.graph.plan import Launch

__all__ = ["run"]

TOY = Machine("toy", bandwidth_gb_s=10.0, peak_tflops=1.0, memory_gb=1.0, launch_us=2.0)


def launch(bytes_moved, flops):
    return Launch(0, "linear", ("y",), ("x", "w", None), {}, "T", bytes_moved, flops)


def test_a_launch_takes_its_gap_and_its_slower_side():
    assert TOY.launch_time_us(launch(10_000, 1)) == pytest.approx(3.0)
    assert TOY.launch_time_us(launch(1, 3_000_000)) == pytest.approx(5.0)


def test_on_a_cpu_both_sides_count():
    cpu = Machine("cpu", 10.0, 1.0, math.inf, launch_us=0.0, overlap=2.0)
    assert cpu.launch_time_us(launch(30_000, 4_000_000)) == pytest.approx(5.0)
    assert measured_cpu(20.0, 0.2).overlap == 2.0


def test_several_devices_share_the_bytes_and_pay_for_sums():
    config = find_model("llama-3-8b")
    one = PredictedModel(config, find_machine("h200", 1))
    four = PredictedModel(config, find_machine("h200", 4))
    moved = [sum(each.bytes_moved for each in model.plan(1, 1, 0).launches) for model in (one, four)]
    assert moved[1] == pytest.approx(moved[0] / 4, rel=0.01)
    assert four.memory_gb(8, 1024) == pytest.approx(one.memory_gb(8, 1024) / 4, rel=0.01)
    sums_us = four.pass_us(1, 1, 0) - sum(
        four.machine.launch_time_us(each) for each in four.plan(1, 1, 0).launches
    )
    assert sums_us == pytest.approx(65 * REDUCE_US, rel=0.01)
    assert one.machine.reduce_us(1 << 20) == 0


def test_known_sizes():
    """Parameters as their publishers count them, in billions, and what a plain pass of one sequence reads."""
    for name, billions in (
        ("llama-3-8b", 8.03),
        ("llama-3-70b", 70.6),
        ("qwen2.5-7b", 7.62),
        ("qwen3-32b", 32.8),
    ):
        weights_gb = PredictedModel(MODELS[name], MACHINES["h200"]).memory_gb(0, 0)
        assert weights_gb == pytest.approx(2 * billions, rel=0.005), name


@pytest.mark.parametrize("rows", [1, 64])
def test_more_nodes_never_take_less(rows):
    model = PredictedModel(tiny_config(), MACHINES["a100"])
    times = [model.pass_us(rows, nodes, 128) for nodes in (1, 2, 4, 8, 16)]
    assert times == sorted(times)


def test_what_certain_and_hopeless_candidates_give():
    curves = Curves(PredictedModel(MODELS["llama-3-8b"], MACHINES["h200"]), None, 0)
    assert curves.speed_up(1, 7, 1.0) == pytest.approx(8.0, rel=0.02)
    assert curves.best(1, 0.0, (1, 2)).candidates == 0
    draft = PredictedModel(eagle_head(MODELS["llama-3-8b"]), MACHINES["h200"])
    paid = Curves(PredictedModel(MODELS["llama-3-8b"], MACHINES["h200"]), draft, 0)
    assert paid.speed_up(1, 7, 0.7) < curves.speed_up(1, 7, 0.7)


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match=r"--gpus: got 3, need a divisor of num_attention_heads \(32\)"):
        part_of(MODELS["llama-3-8b"], 3)
    assert part_of(MODELS["llama-3-8b"], 16).num_kv_heads == 1


def test_the_command_prints_json_and_tables(run):
    found = run("autotune", "simulate", "--device", "b200", "--gpus", 8, "--model", "llama-3-70b", "--json")
    assert found.status == 0, found.err
    (model,) = json.loads(found.out)["models"]
    assert model["launches"] == 5 * 80 + 4
    assert all(each["us"] > 0 for each in model["pass_us"])
    shown = run("autotune", "simulate", "--device", "h100", "--model", "smollm2-135m", "--draft", "lookup")
    assert shown.status == 0 and "predicted ms of a pass" in shown.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "tpu", "--model", "llama-3-8b"), ("--device", "'tpu'", "h200")),
        (("--device", "h200", "--model", "gpt-7"), ("--model", "'gpt-7'", "llama-3-8b")),
        (("--device", "h200", "--gpus", "0", "--model", "llama-3-8b"), ("--gpus",)),
        (("--device", "cpu", "--gpus", "2", "--model", "llama-3-8b"), ("--gpus", "--device cpu")),
    ],
)
def test_wrong_usage_is_one_sentence(run, arguments, words):
    run("autotune", "simulate", *arguments).assert_fails(2, *words)
