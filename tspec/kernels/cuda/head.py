"""Choosing tokens: the head's product with argmax in its epilogue, and argmax of logits in memory.

    norm_head_argmax  out = argmax of (x * rsqrt(mean(x**2) + eps) * norm) @ weight.T (+ bias); no logits in memory
    argmax            out = argmax of logits

The lowest token wins a tie; NaN counts as -inf; a row of nothing else gives token 0, and none is ever >= V.

Shapes    x: [B, R, K]; norm: [K]; weight: [V, K]; bias: [V] or None; logits: [B, R, V]; out: [B, R]
Dtypes    x and weight share one of fp16, bf16, fp32; norm and bias fp32; logits fp16, bf16 or fp32; out int32.
          Inside norm_head_argmax logits are fp32 and never rounded
Layout    all contiguous
Grid      the linear kernel's, whose programs write the best of their block of V; then one program a row
Cost      two launches; the weights once for each 64 rows; 8 bytes for each row and block of V
Rows      independent: linear.py; a maximum has no order
Errors    ContractError from the launchers for any line above
Oracle    tspec/kernels/reference/head.py, norm.py
"""

import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.launch import Scratch, check_scratch, check_tensors, plan_linear
from tspec.kernels.cuda.linear import Epilogue, launch_linear

BLOCK = 1024
"""Values that a program of `_argmax_rows` compares at once."""

NUM_WARPS = 4


@triton.jit(do_not_specialize=["cols"])
def _argmax_rows(
    out_ptr, value_ptr, token_ptr,  # token_ptr None: a value's token is its column
    cols,
    BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    token = tl.full((BLOCK,), 2147483647, tl.int32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < cols
        value = tl.load(value_ptr + row * cols + col, mask=inside, other=float("-inf")).to(tl.float32)
        value = tl.where(value == value, value, float("-inf"))
        found = col
        if token_ptr is not None:
            found = tl.load(token_ptr + row * cols + col, mask=inside, other=2147483647)
        is_better = inside & ((value > best) | ((value == best) & (found < token)))
        best = tl.where(is_better, value, best)
        token = tl.where(is_better, found, token)
    is_best = best == tl.max(best, axis=0)
    tl.store(out_ptr + row, tl.min(tl.where(is_best, token, 2147483647), axis=0))


def argmax(out, logits, *, launch_pdl=False) -> None:
    """out = the lowest token with the greatest logit. See the module."""
    dtype = logits.dtype
    check_tensors("argmax", {"out": (out, tuple(logits.shape[:-1]), torch.int32)})
    check_tensors("argmax", {"x": (logits, tuple(logits.shape), dtype)})
    _choose(out, logits, None, out.numel(), logits.shape[-1], launch_pdl)


def norm_head_argmax(
    out, x, norm, weight, bias=None, *, eps, tuned, scratch, launch_pdl=False
) -> None:  # fmt: skip
    """out = argmax of rms_norm(x) @ weight.T + bias. See the module."""
    kind = "norm_head_argmax"
    rows, k, vocab = x.numel() // x.shape[-1], x.shape[-1], weight.shape[0]
    shapes = {
        "out": (out, tuple(x.shape[:-1]), torch.int32),
        "x": (x, tuple(x.shape), x.dtype),
        "norm": (norm, (k,), torch.float32),
        "weight": (weight, (vocab, k), x.dtype),
        "bias": (bias, (vocab,), torch.float32),
    }
    check_tensors(kind, shapes)
    if rows == 0:
        return
    launch = plan_linear(kind, Epilogue.ARGMAX, rows, vocab, k, x.dtype, tuned, launch_pdl)
    need = check_scratch(kind, scratch, rows, vocab, x.dtype, tuned)
    best, token = _bests(scratch, need.partials, rows * launch.grid[1])
    launch_linear(launch, best, token, x, norm, weight, bias, None, eps, scratch)
    _choose(out, best, token, rows, launch.grid[1], launch_pdl)


def _bests(scratch: Scratch, end_bytes: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The best value and its token of each row and block of V: the last pieces of `partials`, as views."""
    assert scratch.partials is not None, "check_scratch lets no head pass without partials"
    end = end_bytes // 4
    tokens = scratch.partials.view(torch.int32)[end - count : end]
    return scratch.partials[end - 2 * count : end - count], tokens


def _choose(out, value, token, rows: int, cols: int, launch_pdl: bool) -> None:
    if rows == 0:
        return
    options = {"launch_pdl": True} if launch_pdl else {}
    _argmax_rows[(rows,)](
        out, value, token, cols, BLOCK=BLOCK, USE_PDL=launch_pdl,
        num_warps=NUM_WARPS, enable_fp_fusion=False, **options,
    )  # fmt: skip
