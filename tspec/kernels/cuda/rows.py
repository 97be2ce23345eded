"""Small kernels over rows: look up, pick, join and add them; nothing is summed.

    embed        out[row, node] = weight[tokens[row, node]]; zeros where node >= num_nodes[row]
    last_row     out[row, 0] = x[row, num_nodes[row] - 1]; zeros where num_nodes[row] is 0
    parent_rows  out[row, node] = x[row, next_from[row, node] // most]; zeros where node >= level_nodes[row]
    concat       out = a, then b, in each row
    silu_add     out = x * sigmoid(x) + residual

Shapes    tokens [B, T]; weight [V, H]; x [B, T or R, H]; next_from [B, W]; num_nodes, level_nodes [B]; a [B, R, H];
          b [B, R, G]; residual that of x; out: the nodes of tokens or next_from, 1 or R a row, by H, of concat H + G
Dtypes    out: that of what is read, embed's may be wider; integers int32. silu_add computes in fp32 and rounds once
Layout    contiguous; row offsets are int64
Grid      embed (T, B, pieces of H), last_row (B, pieces of H), parent_rows (W, B, pieces of H),
          concat (rows, pieces of H and of G), silu_add (pieces of all elements)
Cost      each element read once and written once; of padding rows of the first three, and of `tokens` there, nothing is
          read
Rows      independent
Errors    ContractError from the launchers for any line above; the kernels check nothing
Oracle    tspec/kernels/reference: embed.py, rows.py, draft.py
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.launch import check_tensors

_COLS = 1024
"""Most columns of one program."""


@triton.jit
def copy_cols(out_ptr, in_ptr, live, COLS: tl.constexpr, BLOCK: tl.constexpr, piece):
    """One piece of a row: in, or zeros where the row is not live."""
    col = piece * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(in_ptr + col, mask=col < tl.where(live, COLS, 0), other=0.0)
    tl.store(out_ptr + col, x.to(out_ptr.dtype.element_ty), mask=col < COLS)


@triton.jit(do_not_specialize=["bucket_nodes"])
def _embed(
    out_ptr, tokens_ptr, weight_ptr, num_nodes_ptr, bucket_nodes,
    COLS: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    node, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
    flat = seq * bucket_nodes + node
    live = node < tl.load(num_nodes_ptr + seq)
    token = tl.load(tokens_ptr + flat, mask=live, other=0).to(tl.int64)
    copy_cols(out_ptr + flat * COLS, weight_ptr + token * COLS, live, COLS, BLOCK, tl.program_id(2))


@triton.jit(do_not_specialize=["bucket_nodes"])
def _last_row(
    out_ptr, x_ptr, num_nodes_ptr, bucket_nodes,
    COLS: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    seq = tl.program_id(0).to(tl.int64)
    nodes = tl.load(num_nodes_ptr + seq)
    flat = seq * bucket_nodes + tl.maximum(nodes - 1, 0)
    copy_cols(out_ptr + seq * COLS, x_ptr + flat * COLS, nodes > 0, COLS, BLOCK, tl.program_id(1))


@triton.jit(do_not_specialize=["rows_each", "width", "most"])
def _parent_rows(
    out_ptr, x_ptr, next_from_ptr, level_nodes_ptr, rows_each, width, most,
    COLS: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    node, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
    flat = seq * width + node
    live = node < tl.load(level_nodes_ptr + seq)
    parent = seq * rows_each + tl.load(next_from_ptr + flat, mask=live, other=0) // most
    copy_cols(out_ptr + flat * COLS, x_ptr + parent * COLS, live, COLS, BLOCK, tl.program_id(2))


@triton.jit
def _concat(
    out_ptr, a_ptr, b_ptr,
    A_COLS: tl.constexpr, B_COLS: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    PIECES: tl.constexpr = (A_COLS + BLOCK - 1) // BLOCK
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    out_ptr += row * (A_COLS + B_COLS)
    if piece < PIECES:
        copy_cols(out_ptr, a_ptr + row * A_COLS, True, A_COLS, BLOCK, piece)
    else:
        copy_cols(out_ptr + A_COLS, b_ptr + row * B_COLS, True, B_COLS, BLOCK, piece - PIECES)


@triton.jit(do_not_specialize=["size"])
def _silu_add(out_ptr, x_ptr, residual_ptr, size, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    out = x / (1.0 + tl.exp(-x)) + residual
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=inside)


def embed(out, tokens, weight, num_nodes, *, launch_pdl: bool = False) -> None:
    """Launch; see the module. Errors: ContractError."""
    batch, nodes = tokens.shape
    cols = weight.shape[1]
    check_tensors(
        "embed",
        {
            "out": (out, (batch, nodes, cols), out.dtype),
            "tokens": (tokens, (batch, nodes), torch.int32),
            "weight": (weight, tuple(weight.shape), weight.dtype),
            "num_nodes": (num_nodes, (batch,), torch.int32),
        },
    )
    constants = constexprs(cols, launch_pdl)
    grid = (nodes, batch, triton.cdiv(cols, constants["BLOCK"]))
    _embed[grid](out, tokens, weight, num_nodes, nodes, **constants, **row_options(launch_pdl))


def last_row(out, x, num_nodes, *, launch_pdl: bool = False) -> None:
    """Launch; see the module. Errors: ContractError."""
    batch, nodes, cols = x.shape
    check_tensors(
        "last_row",
        {
            "out": (out, (batch, 1, cols), out.dtype),
            "x": (x, (batch, nodes, cols), x.dtype),
            "num_nodes": (num_nodes, (batch,), torch.int32),
        },
    )
    constants = constexprs(cols, launch_pdl)
    grid = (batch, triton.cdiv(cols, constants["BLOCK"]))
    _last_row[grid](out, x, num_nodes, nodes, **constants, **row_options(launch_pdl))


def parent_rows(out, x, next_from, level_nodes, *, most: int, launch_pdl: bool = False) -> None:
    """Launch; see the module. Errors: ContractError."""
    (batch, rows_each, cols), width = x.shape, next_from.shape[1]
    check_tensors(
        "parent_rows",
        {
            "out": (out, (batch, width, cols), x.dtype),
            "x": (x, (batch, rows_each, cols), x.dtype),
            "next_from": (next_from, (batch, width), torch.int32),
            "level_nodes": (level_nodes, (batch,), torch.int32),
        },
    )
    constants = constexprs(cols, launch_pdl)
    grid = (width, batch, triton.cdiv(cols, constants["BLOCK"]))
    _parent_rows[grid](
        out, x, next_from, level_nodes, rows_each, width, most, **constants, **row_options(launch_pdl)
    )


def concat(out, a, b, *, launch_pdl: bool = False) -> None:
    """Launch; see the module. Errors: ContractError."""
    *lead, a_cols = a.shape
    b_cols = b.shape[-1]
    check_tensors(
        "concat",
        {
            "out": (out, (*lead, a_cols + b_cols), a.dtype),
            "a": (a, (*lead, a_cols), a.dtype),
            "b": (b, (*lead, b_cols), a.dtype),
        },
    )
    if out.numel() == 0:
        return
    constants = concat_constexprs(a_cols, b_cols, launch_pdl)
    pieces = sum(triton.cdiv(cols, constants["BLOCK"]) for cols in (a_cols, b_cols))
    _concat[(a.numel() // a_cols, pieces)](out, a, b, **constants, **row_options(launch_pdl))


def silu_add(out, x, residual, *, launch_pdl: bool = False) -> None:
    """Launch; see the module. Errors: ContractError."""
    shape, size = tuple(x.shape), x.numel()
    shapes = {name: (tensor, shape, x.dtype) for name, tensor in (("out", out), ("residual", residual))}
    check_tensors("silu_add", shapes | {"x": (x, shape, x.dtype)})
    if size == 0:
        return
    _silu_add[(triton.cdiv(size, _COLS),)](
        out, x, residual, size, BLOCK=_COLS, USE_PDL=launch_pdl, **row_options(launch_pdl)
    )


def constexprs(cols: int, launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernels that move rows of `cols` columns."""
    return {"COLS": cols, "BLOCK": min(_COLS, triton.next_power_of_2(cols)), "USE_PDL": launch_pdl}


def concat_constexprs(a_cols: int, b_cols: int, launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of `concat`."""
    block = constexprs(max(a_cols, b_cols), launch_pdl)["BLOCK"]
    return {"A_COLS": a_cols, "B_COLS": b_cols, "BLOCK": block, "USE_PDL": launch_pdl}


def row_options(launch_pdl: bool) -> dict[str, Any]:
    """Options of the compiler and the launcher."""
    options: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
    return options | ({"launch_pdl": True} if launch_pdl else {})
