"""Tuning a whole model on the CPU: what is measured, what later starts run with, and that texts stay as they are.

Run: pytest tests/autotune/test_cpu_tuner.py
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.command_line import run

from autotune.cpu_timer import CpuTimer, program
from autotune.cpu_tuner import CpuTuner
from autotune.pass_case import NODES
from autotune.tunable import tunable_ops
from tspec import LLM, SamplingParams
from tspec.kernels import tuned_store
from tspec.kernels.cpu import launch_words
from tspec.kernels.cpu.store import open_store
from tspec.kernels.cpu.tuned import DEFAULT_PRODUCT, AttentionTuned
from tspec.kernels.tuned_store import FOLDER_VARIABLE

__all__ = ["run"]

OPS = {"head", "linear_add", "norm_linear", "norm_linear_silu_mul", "rope_attention"}
THREADS = 1


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    tuned_store._log_once.cache_clear()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "tuned"))


@pytest.fixture
def timer(tiny_folder):
    found = CpuTimer(tiny_folder, THREADS)
    yield found
    found.close()


def words(launches, op, name):
    return launches[1:, 1 + launch_words.OPERANDS[op.kind][1].index(name)].tolist()


def test_all_launches_that_stream_weights_and_attention_are_tuned(timer):
    plan = timer._plans[0].plan
    assert {op.op for op in timer.ops} == OPS
    numbers = sorted(number for each in timer.ops.values() for number in each)
    others = {"embed", "index_rows"}
    assert numbers == [each.number for each in plan.launches if each.kind not in others][: len(numbers)]
    cases = {op.op: len(timer.measure(op, DEFAULT_PRODUCT)) for op in timer.ops if not op.is_attention}
    assert cases == {op: len(NODES) - (op == "head") for op in OPS - {"rope_attention"}}


def test_a_program_has_the_op_alone_with_its_configuration_and_leaves_the_plan_as_it_is(timer):
    bound = timer._plans[1]
    before = bound.launches.copy()
    tuned = replace(DEFAULT_PRODUCT, claims=64, prefetch=4096, ahead_panels=2)
    for op, numbers in tunable_ops(bound.plan).items():
        config = AttentionTuned(8) if op.is_attention else tuned
        launches = program(bound, op, config, THREADS)
        assert launches[0].tolist()[:3] == before[0].tolist()[:3]
        assert len(launches) == 1 + len(numbers)
        assert (launches[1:, 0] == launch_words.OPERANDS[op.kind][0]).all()
        if op.is_attention:
            assert set(words(launches, op, "group_rows")) == {8}
        else:
            assert set(words(launches, op, "claims")) == {64}
            assert set(words(launches, op, "threads")) == {1}
            assert launches[0, launch_words.AHEAD] == launches[1, 8]
    assert np.array_equal(bound.launches, before)


def test_the_next_start_binds_what_is_in_the_store_and_gives_the_same_text(tiny_folder):
    params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.8, seed=3)

    def start():
        with LLM(tiny_folder, num_threads=THREADS) as llm:
            engine = llm._engine.opened()
            return llm.generate(["hello hello"], params)[0].token_ids, engine.executor.tuned

    usual, nothing = start()
    assert nothing.products == nothing.attention == {}
    with CpuTuner(tiny_folder, THREADS) as tuner:
        for op in tuner.ops:
            best = AttentionTuned(4) if op.is_attention else replace(DEFAULT_PRODUCT, row_block=2, claims=4)
            tuner.put(op, best)
            assert tuner.has(op)
    found, tuned = start()
    assert found == usual
    assert {each.row_block for each in tuned.products.values()} == {2}
    assert list(tuned.attention.values()) == [AttentionTuned(4)]


def test_the_command_stores_what_it_is_sure_of_and_does_not_measure_it_again(run, tiny_folder):
    command = ("autotune", "kernels", tiny_folder, "--budget", 6, "--num-threads", THREADS)
    first = run(*command)
    assert first.status == 0, first.err
    entries = open_store(THREADS).entries
    assert entries and {key.op for key in entries} <= OPS
    second = run(*command)
    assert second.out.count("stored") == len(entries)
    assert entries.items() <= open_store(THREADS).entries.items()


def test_what_the_budget_leaves_is_told(run, tiny_folder):
    outcome = run("autotune", "kernels", tiny_folder, "--budget", 1e-9, "--num-threads", THREADS)
    assert outcome.status == 0
    assert f"before {len(OPS) + 1} ops were sure" in outcome.out


@pytest.mark.parametrize("budget", ["0", "-1", "nan"])
def test_a_budget_of_nothing_is_wrong_usage(run, tiny_folder, budget):
    run("autotune", "kernels", tiny_folder, f"--budget={budget}").assert_fails(2, "--budget")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_tuning_a_device_that_is_not_there_is_wrong_usage(run, tiny_folder):
    run("autotune", "kernels", tiny_folder, "--device", "cuda").assert_fails(2, "no CUDA device")
