"""The norm of a row by itself is its reference's, in every dtype and width; rows do not see each other.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_norm.py
"""

import pytest
import torch
from support.cuda_rows import HALF_ULP

from tspec.core.errors import ContractError
from tspec.kernels.cuda.norm import MAX_COLS, rms_norm
from tspec.kernels.reference import REFERENCES

EPS = 1e-5


def run(x, weight, eps=EPS):
    out = torch.full_like(x, torch.nan)
    rms_norm(out, x, weight, eps=eps)
    return out


@pytest.mark.parametrize("dtype", HALF_ULP, ids=str)
@pytest.mark.parametrize("cols", [1, 3, 24, 576, 4096, 24577, MAX_COLS])
def test_a_row_is_normalised_as_the_reference_does(cols, dtype):
    x = (3 * torch.randn(2, 3, cols, generator=torch.Generator().manual_seed(cols))).to(dtype)
    weight = torch.linspace(0.5, 2, cols)
    (want,) = REFERENCES["rms_norm"]({"eps": EPS}, x.double(), weight)
    torch.testing.assert_close(run(x, weight).double(), want, rtol=2 * HALF_ULP[dtype] + 1e-6, atol=1e-6)


def test_rows_of_any_size_are_scaled_to_one_and_a_row_of_zeros_stays():
    x = torch.ones(1, 4, 40) * torch.tensor([1e-3, 1.0, 1e6, 0.0])[None, :, None]
    out = run(x, torch.ones(40), eps=1e-12)
    torch.testing.assert_close(out[0, :3], torch.ones(3, 40), rtol=1e-5, atol=0)
    assert not out[0, 3].any()


def test_a_row_has_the_same_bits_alone_and_in_place():
    x, weight = torch.randn(2, 5, 100), torch.randn(100)
    out = run(x, weight)
    x[0, 3] = torch.nan
    rms_norm(x, x, weight, eps=EPS)
    assert torch.equal(x[1], out[1])
    assert torch.equal(run(out[:1, :1].contiguous(), weight), run(out, weight)[:1, :1])


def test_a_row_that_no_program_holds_is_refused():
    x = torch.zeros(1, 1, MAX_COLS + 1)
    with pytest.raises(ContractError, match="columns of rms_norm: got 32769"):
        run(x, torch.ones(MAX_COLS + 1))
    with pytest.raises(ContractError, match="weight of rms_norm"):
        run(torch.zeros(1, 1, 8), torch.ones(8).half())
