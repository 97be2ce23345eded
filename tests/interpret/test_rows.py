"""Embedding, the picks of rows and their joins exactly as the references; padding gives zeros.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_rows.py
"""

import pytest
import torch
from support.cuda_rows import HALF_ULP

from tspec.core.errors import ContractError
from tspec.kernels.cuda.rows import concat, embed, last_row, parent_rows, silu_add
from tspec.kernels.reference import REFERENCES

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NODES = torch.tensor([3, 1, 0, 5], dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [1, 24, 576, 1025])
def test_live_nodes_get_their_embedding_and_padding_gets_zeros(cols, dtype):
    weight = torch.randn(50, cols).to(dtype)
    live = torch.arange(5) < NODES[:, None]
    tokens = torch.where(live, torch.randint(0, 50, (4, 5)), 10**9).int()
    out = torch.full((4, 5, cols), torch.nan, dtype=dtype)
    embed(out, tokens, weight, NODES)
    (expected,) = REFERENCES["embed"]({}, torch.where(live, tokens, 0), weight)
    assert torch.equal(out.float(), torch.where(live[:, :, None], expected, 0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [1, 24, 1025])
def test_the_last_live_node_of_each_row_is_picked_and_a_row_without_any_gets_zeros(cols, dtype):
    x = torch.randn(4, 5, cols).to(dtype)
    out = torch.full((4, 1, cols), torch.nan, dtype=dtype)
    last_row(out, x, NODES)
    (expected,) = REFERENCES["last_row"]({}, x, NODES)
    assert torch.equal(out, torch.where(NODES[:, None, None] > 0, expected, 0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width", "cols"), [(1, 1, 1), (1, 3, 24), (3, 3, 1025), (10, 10, 576)])
def test_each_node_of_a_level_gets_the_row_that_it_hangs_on_and_padding_zeros(rows, width, cols, dtype):
    """Three candidates a row; padding's places are not read."""
    live = torch.arange(width) < NODES[:, None].clamp(max=width)
    x = torch.randn(4, rows, cols).to(dtype)
    next_from = torch.where(live, torch.randint(0, 3 * rows, (4, width)), 10**9).int()
    out = torch.full((4, width, cols), torch.nan, dtype=dtype)
    parent_rows(out, x, next_from, NODES, most=3)
    next_from = torch.where(live, next_from, 0)
    assert torch.equal(out, REFERENCES["parent_rows"]({"most": 3}, x, next_from, NODES)[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("first", "second"), [(1, 1), (24, 40), (1025, 3), (576, 1152)])
def test_two_rows_are_joined_end_to_end(first, second, dtype):
    a, b = (torch.randn(2, 3, cols).to(dtype) for cols in (first, second))
    out = torch.full((2, 3, first + second), torch.nan, dtype=dtype)
    concat(out, a, b)
    assert torch.equal(out, REFERENCES["concat"]({}, a, b)[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [1, 24, 1025])
def test_silu_is_added_to_the_residual_and_rounded_once(cols, dtype):
    """Within a whole ulp: bfloat16 is cut off in the interpreter instead of rounded."""
    x, residual = (3 * torch.randn(2, 3, cols, generator=torch.Generator().manual_seed(cols)) for _ in "xr")
    x, residual = x.to(dtype), residual.to(dtype)
    out = torch.full_like(x, torch.nan)
    silu_add(out, x, residual)
    (want,) = REFERENCES["silu_add"]({}, x.double(), residual.double())
    torch.testing.assert_close(out.double(), want, rtol=2 * HALF_ULP[dtype], atol=1e-6)


def test_rows_of_other_shapes_are_refused():
    x = torch.zeros(2, 3, 8)
    with pytest.raises(ContractError, match="out of concat"):
        concat(torch.zeros(2, 3, 9), x, x)
    with pytest.raises(ContractError, match="residual of silu_add"):
        silu_add(x, x, x.half())
    with pytest.raises(ContractError, match="next_from of parent_rows"):
        parent_rows(x, x, torch.zeros(1, 3).int(), NODES[:2], most=1)
