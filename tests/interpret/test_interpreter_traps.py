"""What the interpreter gets wrong, shown here so that a fix upstream is noticed, and how the kernels avoid it.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_interpreter_traps.py
"""

import pytest
import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.interpret import IS_INTERPRETED, dot


@triton.jit
def _bare_dot(out_ptr, a_ptr, b_ptr, SIDE: tl.constexpr):
    row, col = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    place = row * SIDE + col
    tl.store(out_ptr + place, tl.dot(tl.load(a_ptr + place), tl.load(b_ptr + place)))


@triton.jit
def _safe_dot(out_ptr, a_ptr, b_ptr, SIDE: tl.constexpr):
    row, col = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    place = row * SIDE + col
    acc = tl.zeros((SIDE, SIDE), dtype=tl.float32)
    tl.store(out_ptr + place, dot(tl.load(a_ptr + place), tl.load(b_ptr + place), acc))


def product(kernel, dtype):
    """(found, float64 answer) of one product of 16 x 16."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(16, 16, generator=generator).to(dtype) for _ in range(2))
    out = torch.empty(16, 16)
    kernel[(1,)](out, a, b, SIDE=16)
    return out.double(), a.double() @ b.double()


def test_these_tests_run_in_the_interpreter():
    assert IS_INTERPRETED


def test_a_bare_product_of_bfloat16_is_wrong_in_the_interpreter():
    """The trap. If this fails, the interpreter was mended, and `interpret.dot` may lose its reason."""
    found, want = product(_bare_dot, torch.bfloat16)
    assert (found - want).abs().max() > 1e3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_product_of_the_kernels_is_right_in_the_interpreter(dtype):
    found, want = product(_safe_dot, dtype)
    assert (found - want).abs().max() < 1e-5
