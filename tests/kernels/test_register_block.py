"""The inner loop of products: the same bits in blocks of every height, at either width, and in the order of k.

Run: pytest tests/kernels/test_register_block.py
"""

from functools import partial

import numpy as np
import pytest
import torch
from support.cpu_pass import Case, run_on_cpu
from support.kernel_case import DTYPES, Maker, chains
from support.logits_hash import hash_of_logits, write_models
from support.narrow_host import IS_X86, output_on_avx2
from support.product_cases import linear

from tspec.core.dtypes import DType

MAX_ROWS = 17


def outputs(make, tokens: list[int], num_rows: int = MAX_ROWS) -> np.ndarray:
    """One pass of a case over a chain of `tokens`; always the same rows, weights and biases."""
    case = make(Maker("a register block"), counts=(num_rows,))
    chain = chains((len(tokens),))
    inputs = Maker("a register block").inputs(chain) | {"tokens": np.array([tokens], np.int32)}
    smaller = Case(case.ops, case.outputs, case.weights, inputs, {})
    return run_on_cpu(smaller)["out"].numpy().view(np.uint32)


@pytest.mark.parametrize("kind", ["linear", "linear_silu_mul"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.short)
def test_a_row_has_the_same_bits_in_a_block_of_any_height(dtype, kind):
    """All counts of rows, hence all mixtures of heights, against one row at a time."""
    make = partial(linear, dtype=dtype, n=70, k=46, bias=True, kind=kind)
    alone = np.concatenate([outputs(make, [row]) for row in range(MAX_ROWS)])
    for rows in range(2, MAX_ROWS + 1):
        assert np.array_equal(outputs(make, list(range(rows))), alone[:rows]), rows
        last = list(range(MAX_ROWS - rows, MAX_ROWS))
        assert np.array_equal(outputs(make, last), alone[last]), rows


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.short)
def test_products_are_added_in_the_order_of_k_with_one_rounding_each(dtype):
    """Numbers of few bits, so that float64 holds each product and sum exactly, as a fused multiply-add does."""
    make = Maker("in order")
    case = linear(make, dtype, n=50, k=64, counts=(3,))
    rows, weights = make.tensors["x.table"], make.tensors["matrix"]
    rows.copy_(rows.bfloat16())
    weights.copy_(weights.bfloat16())
    sums = np.zeros((3, 50), np.float32)
    for k in range(64):
        product = np.outer(rows[:, k].double().numpy(), weights[:, k].double().numpy())
        sums = (sums.astype(np.float64) + product).astype(np.float32)
    assert np.array_equal(run_on_cpu(case)["out"].numpy().view(np.uint32), sums.view(np.uint32))


def test_an_output_ignores_what_other_outputs_hold():
    """NaN and infinity in one row of weights, and in one row of x, stay there."""
    make = Maker("apart")
    case = linear(make, DType.FLOAT32, n=50, k=20, counts=(9,))
    clean = run_on_cpu(case)["out"]
    make.tensors["matrix"][7] = torch.inf
    make.tensors["x.table"][4, 3] = torch.nan
    found = run_on_cpu(case)["out"]
    kept = torch.ones_like(clean, dtype=torch.bool)
    kept[4], kept[:, 7] = False, False
    assert torch.equal(found[kept], clean[kept])
    assert found[4].isnan().all() and not found[:, 7].isfinite().any()


@pytest.mark.skipif(not IS_X86, reason="the narrow registers of another architecture")
def test_narrow_registers_give_the_bits_of_wide_ones(tmp_path):
    """A process that compiles for AVX2 alone, through the whole engine; any x86 host can run it."""
    write_models(tmp_path)
    assert output_on_avx2("support.logits_hash", str(tmp_path)) == ["avx2", "8", hash_of_logits(tmp_path)]
