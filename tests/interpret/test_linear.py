"""Linear kernels equal their references, in every dtype, tile, split and ragged shape; rows do not see each other.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_linear.py
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda_rows import SMALL, expected, make_operands, make_scratch, run_kernel, tolerance

from tspec.core.errors import ContractError
from tspec.kernels.cuda.linear import linear, linear_add, norm_linear

KINDS = ("linear", "linear_add", "linear_silu_mul", "norm_linear", "norm_linear_silu_mul")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def assert_close(operands, out):
    want = expected(operands)
    scale = want.abs().clamp(min=1)
    assert ((out.double() - want).abs() / scale).max() <= tolerance(operands)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 70),
    n=st.integers(1, 50),
    k=st.integers(1, 110),
    has_bias=st.booleans(),
    split_k=st.sampled_from((1, 2, 4)),
)
def test_a_kernel_equals_its_reference(kind, dtype, rows, n, k, has_bias, split_k):
    operands = make_operands(kind, rows, n, k, dtype, has_bias)
    assert_close(operands, run_kernel(operands, replace(SMALL, split_k=split_k)))


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 32, 33, 64, 65])
@pytest.mark.parametrize("kind", KINDS)
def test_each_tile_of_rows_is_right_at_its_edges(kind, rows):
    operands = make_operands(kind, rows, 20, 40, torch.float16, has_bias=True)
    assert_close(operands, run_kernel(operands))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_alone_and_in_every_tile(kind, split_k, dtype):
    """Row 5 alone, among 16, 32, 64 and 70 rows: tiles of 16, 32 and 64 rows."""
    tuned = replace(SMALL, split_k=split_k)
    operands = make_operands(kind, 70, 20, 100, dtype, has_bias=True)
    alone = run_kernel(operands.row(5), tuned)
    for rows in (16, 32, 64, 70):
        among = replace(
            operands, x=operands.x[:, :rows].contiguous(), residual=operands.residual[:, :rows].clone()
        )
        assert torch.equal(run_kernel(among, tuned)[:, 5:6], alone), rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_nan_leaves_the_others_as_they_are(kind):
    operands = make_operands(kind, 4, 20, 40, torch.float16)
    before = run_kernel(operands)
    operands.x[:, 2] = float("nan")
    after = run_kernel(operands)
    assert after[:, 2].isnan().all()
    assert torch.equal(after[:, [0, 1, 3]], before[:, [0, 1, 3]])


@pytest.mark.parametrize("split_k", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_gives_the_same_bits_and_leaves_the_counters_at_zero(kind, split_k):
    """The second run finds partial sums of the first, and those of other operands."""
    tuned = replace(SMALL, split_k=split_k)
    operands, other = (make_operands(kind, 20, 40, 100, torch.float32, seed=seed) for seed in (0, 1))
    scratch = make_scratch(operands, tuned)
    first = run_kernel(operands, tuned, scratch)
    assert not scratch.counters.any()
    run_kernel(other, tuned, scratch)
    assert torch.equal(run_kernel(operands, tuned, scratch), first)
    assert not scratch.counters.any()


def test_more_splits_than_steps_of_k_leave_some_splits_empty():
    operands = make_operands("norm_linear", 3, 20, 33, torch.float32)
    assert_close(operands, run_kernel(operands, replace(SMALL, split_k=8)))


def test_the_residual_may_be_the_output():
    operands = make_operands("linear_add", 9, 40, 70, torch.float16)
    apart = run_kernel(operands)
    linear_add(operands.residual, operands.x, operands.weight, None, operands.residual, tuned=SMALL)
    assert torch.equal(operands.residual, apart)


def test_no_rows_launch_nothing():
    operands = make_operands("linear", 0, 8, 8, torch.float32)
    assert run_kernel(operands).shape == (1, 0, 8)


def test_a_large_row_is_normalised_to_the_same_numbers():
    """A thousand times the row: its mean of squares is a million times as large, and nothing else changes."""
    operands = make_operands("norm_linear", 3, 20, 64, torch.float32)
    operands.x[0, 1] = operands.x[0, 0] * 2**10
    out = run_kernel(operands)
    assert torch.allclose(out[0, 1], out[0, 0], rtol=1e-4, atol=1e-5)
    assert_close(operands, out)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda x, weight, out: (x.double(), weight, out), "x of linear"),
        (lambda x, weight, out: (x, weight.half(), out), "weight of linear"),
        (lambda x, weight, out: (x, weight.T.contiguous().T, out), "weight of linear"),
        (lambda x, weight, out: (x, weight[:, :-1].contiguous(), out), "weight of linear"),
        (lambda x, weight, out: (x, weight, out.half()), "out of linear"),
    ],
    ids=["dtype of x", "dtype of weight", "strided", "inner size", "dtype of out"],
)
def test_operands_outside_the_contract_are_refused(change, named):
    operands = make_operands("linear", 2, 6, 8, torch.float32)
    x, weight, out = change(operands.x, operands.weight, torch.empty(1, 2, 6))
    with pytest.raises(ContractError, match=named):
        linear(out, x, weight, tuned=SMALL)


def test_too_little_scratch_is_refused():
    operands = make_operands("norm_linear", 2, 6, 8, torch.float32)
    out = torch.empty(1, 2, 6)
    with pytest.raises(ContractError, match="partials of norm_linear"):
        norm_linear(
            out, operands.x, operands.norm, operands.weight, eps=1e-5, tuned=replace(SMALL, split_k=2)
        )
