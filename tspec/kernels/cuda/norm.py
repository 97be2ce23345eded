"""RMSNorm of rows that several ops read, or that no product reads: where it is no prologue. One program a row.

    out = x * rsqrt(mean(x**2) + eps) * weight

Shapes    x, out: [B, R, H]; weight: [H]; H at most 32768: a row is one tile
Dtypes    x and out share one of fp16, bf16, fp32; weight is fp32; all is computed in fp32 and rounded once
Layout    all contiguous; row offsets are int64; out may alias x
Grid      (rows,)
Cost      each element read once and written once
Rows      independent: the tile and its warps, and so the order of the sum, follow H alone
Errors    ContractError from the launcher for any line above; the kernel itself checks nothing
Oracle    tspec/kernels/reference/norm.py::rms_norm
Source    RMSNorm, arXiv:1910.07467, eq. 4
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tspec.core.errors import ContractError
from tspec.kernels.cuda.launch import check_tensors

MAX_COLS = 32768
"""Columns that the threads of one program hold in their registers."""

_COLS_A_WARP = 1024
_MOST_WARPS = 16


@triton.jit
def _rms_norm(out_ptr, x_ptr, norm_ptr, eps, COLS: tl.constexpr, WIDTH: tl.constexpr, USE_PDL: tl.constexpr):
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, col = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = col < COLS
    x = tl.load(x_ptr + row * COLS + col, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / COLS + eps)
    out = x * rstd * tl.load(norm_ptr + col, mask=inside, other=0.0)
    tl.store(out_ptr + row * COLS + col, out.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(out, x, weight, *, eps: float, launch_pdl: bool = False) -> None:
    """Launch; see the module. Errors: ContractError."""
    cols = x.shape[-1]
    check_cols(cols)
    shape = tuple(x.shape)
    shapes = {
        "out": (out, shape, x.dtype),
        "x": (x, shape, x.dtype),
        "weight": (weight, (cols,), torch.float32),
    }
    check_tensors("rms_norm", shapes)
    if x.numel() == 0:
        return
    _rms_norm[(x.numel() // cols,)](
        out, x, weight, eps, **constexprs(cols, launch_pdl), **options(cols, launch_pdl)
    )


def check_cols(cols: int) -> None:
    """Refuse rows that no program holds. Errors: ContractError."""
    if cols > MAX_COLS:
        raise ContractError(
            "columns of rms_norm",
            got=cols,
            need=f"at most {MAX_COLS} on a device",
            fix="Run this model with device='cpu'.",
        )


def constexprs(cols: int, launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernel."""
    return {"COLS": cols, "WIDTH": triton.next_power_of_2(cols), "USE_PDL": launch_pdl}


def options(cols: int, launch_pdl: bool) -> dict[str, Any]:
    """Options of the compiler and the launcher: as many warps as the row needs."""
    num_warps = min(max(triton.next_power_of_2(cols) // _COLS_A_WARP, 1), _MOST_WARPS)
    found: dict[str, Any] = {"num_warps": num_warps, "enable_fp_fusion": False}
    return found | ({"launch_pdl": True} if launch_pdl else {})
