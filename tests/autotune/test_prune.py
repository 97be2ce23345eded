"""What pruning discards, and why: by the kernels' checks, by a bound, by the binary. No GPU.

Run: pytest tests/autotune/test_prune.py
     pytest -m slow tests/autotune/test_prune.py
"""

from dataclasses import replace

import pytest
from support.command_line import run

from autotune.prune import SLOWEST, START_US, bound_us, prune, space_of
from autotune.prune_report import numbers
from autotune.tunable import TunableOp
from tspec.core.dtypes import DType
from tspec.kernels.cuda.resources import Reading
from tspec.kernels.cuda.tuned import Tuned, default_attention_tuned, default_tuned

__all__ = ["run"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SQUARE = TunableOp("linear_add", "linear_add", DType.BFLOAT16, (("k", 4096), ("n", 4096)))
HEADS = TunableOp(
    "rope_attention",
    "rope_attention",
    DType.BFLOAT16,
    (("head_dim", 128), ("num_heads", 32), ("num_kv_heads", 8)),
)
WELL = Reading(100, 0, 1000, "HGMMA", 4, 4, "")


def reader(change=lambda case: WELL):
    """What reads binaries, and the cases that it was asked for."""
    asked = []

    def read(case):
        asked.append(case)
        return change(case)

    return read, asked


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("op", [SQUARE, HEADS], ids=str)
def test_every_configuration_is_left_or_discarded_for_a_reason(arch, op):
    pruned = prune(op, arch, read=reader()[0])
    space = list(space_of(op, arch))
    assert sorted([*pruned.left, *(each.config for each in pruned.discarded)], key=repr) == sorted(
        space, key=repr
    )
    assert pruned.left
    assert op.is_attention or pruned.counts()["illegal"] > 0
    assert all(each.reason for each in pruned.discarded)
    assert pruned.num_unread == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_defaults_are_left(arch):
    default = default_tuned("linear_add", 4096, 4096, DType.BFLOAT16, arch)
    assert default in prune(SQUARE, arch, read=reader()[0]).left
    attention = default_attention_tuned(128, 64, DType.BFLOAT16, arch)
    assert attention in prune(HEADS, arch, read=reader()[0]).left


def test_the_reason_of_what_is_illegal_names_the_number():
    pruned = prune(SQUARE, "sm_90", read=reader()[0], space=[Tuned(128, 256, 1, 4, 6)])
    (only,) = pruned.discarded
    assert only.stage == "illegal"
    assert only.reason.startswith("shared memory of linear_add: got up to ")


def test_the_bound_is_the_bytes_over_the_bandwidth_or_over_what_is_in_flight():
    """4096 x 4096 bfloat16 are 33.6 MB: 11.18 us at 3000 GB/s. 64 programs of one step of 4 KiB: 328 GB/s.

    Of each the time beyond the start.
    """

    def after_start(tuned):
        return bound_us(SQUARE, "sm_90", tuned) - START_US

    assert after_start(Tuned(64, 128, 1, 4, 6)) == pytest.approx(11.18, rel=1e-3)
    starved = Tuned(64, 32, 1, 4, 1)
    assert after_start(starved) == pytest.approx(2 * 4096**2 / (64 * 4096 / 0.8e-6) * 1e6)
    assert after_start(Tuned(64, 128, 8, 4, 6)) == pytest.approx(
        (2 * 4096**2 + 2 * 4 * 16 * 4096 * 8) / 3e12 * 1e6
    )


def test_what_the_bound_calls_slow_is_not_compiled():
    well, starved = Tuned(64, 128, 1, 4, 6), Tuned(64, 32, 1, 4, 2)
    read, asked = reader()
    pruned = prune(SQUARE, "sm_90", read=read, space=[well, starved])
    assert bound_us(SQUARE, "sm_90", starved) > SLOWEST * bound_us(SQUARE, "sm_90", well)
    assert pruned.left == (well,)
    assert [each.stage for each in pruned.discarded] == ["slow"]
    assert {case.constexprs["BLOCK_K"] for case in asked} == {128}


FAULTS = {
    "24 B a thread spilled at 255 registers": replace(WELL, registers=255, spilled_bytes=24),
    "300000 B of shared memory": replace(WELL, shared_bytes=300_000),
    "no tensor core": replace(WELL, tensor_core=""),
}


@pytest.mark.parametrize("reason", FAULTS)
@pytest.mark.parametrize("rows", [1, 64])
def test_a_fault_in_a_tile_of_either_height_discards(reason, rows):
    tile = 64 if rows == 64 else 16
    read, _ = reader(lambda case: FAULTS[reason] if case.constexprs["M_TILE"] == tile else WELL)
    pruned = prune(SQUARE, "sm_90", read=read, space=[Tuned(64, 128, 1, 4, 4)])
    (only,) = pruned.discarded
    assert only.stage == "compiled"
    assert f"-{rows}x4096x4096: " in only.reason and reason in only.reason


def test_a_variant_is_compiled_once():
    op = replace(SQUARE, shape=(("k", 4096), ("n", 6144)))
    read, asked = reader()
    prune(op, "sm_90", read=read, space=[Tuned(64, 128, 1, 4, 4)] * 3)
    assert len(asked) == 2


def test_when_time_is_over_the_others_are_left_and_counted():
    times = iter([True, True])
    read, asked = reader()
    pruned = prune(SQUARE, "sm_90", has_time=lambda: next(times, False), read=read)
    assert pruned.num_unread == len(pruned.left) - 2
    assert len(asked) <= 4


SMALL = TunableOp("linear_add", "linear_add", DType.BFLOAT16, (("k", 576), ("n", 576)))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_binaries_of_a_small_kernel_are_read(arch):
    well = default_tuned("linear_add", 576, 576, DType.BFLOAT16, arch)
    illegal = replace(well, num_stages=9)
    pruned = prune(SMALL, arch, space=[well, illegal])
    assert pruned.left == (well,)
    assert [each.config for each in pruned.discarded] == [illegal]


@pytest.mark.slow
def test_pruning_alone_lists_what_it_discards_and_why(run, tiny_folder):
    outcome = run(
        "autotune", "kernels", tiny_folder, "--prune-only", "sm_90", "--budget", "10", "--op", "linear_add"
    )
    assert outcome.status == 0
    illegal = numbers(Tuned(128, 256, 1, 4, 6))
    assert f"{illegal}: illegal: shared memory of linear_add" in outcome.out
    assert "not compiled" in outcome.out


def test_an_op_that_the_model_does_not_have_is_wrong_usage(run, tiny_folder):
    outcome = run("autotune", "kernels", tiny_folder, "--prune-only", "sm_90", "--op", "conv")
    outcome.assert_fails(2, "--op", "conv", "linear_add")
