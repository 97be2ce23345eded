"""Embedding and the pick of the last node, exactly as the references; padding gives zeros.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_rows.py
"""

import pytest
import torch

from tspec.kernels.cuda.rows import embed, last_row
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
