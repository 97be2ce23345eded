"""Small kernels over rows: look up embeddings, pick each sequence's last node.

    embed      out[row, node] = weight[tokens[row, node]]; zeros where node >= num_nodes[row]
    last_row   out[row, 0] = x[row, num_nodes[row] - 1]; zeros where num_nodes[row] is 0

Shapes    tokens [B, T]; weight [V, H]; x, out [B, T or 1, H]; num_nodes [B]
Dtypes    out: that of what is read, or wider; integers int32
Layout    contiguous; row offsets are int64
Grid      embed (T, B, pieces of H), last_row (B, pieces of H)
Cost      each element read once and written once; of padding rows, and of `tokens` there, nothing is read
Rows      independent; nothing is summed
Errors    ContractError from the launchers for any line above; the kernels check nothing
Oracle    tspec/kernels/reference: embed.py::embed, rows.py::last_row
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.launch import check_tensors

_COLS = 1024
"""Most columns of one program."""


@triton.jit
def _copy_cols(out_ptr, in_ptr, live, COLS: tl.constexpr, BLOCK: tl.constexpr, piece):
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
    _copy_cols(out_ptr + flat * COLS, weight_ptr + token * COLS, live, COLS, BLOCK, tl.program_id(2))


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
    _copy_cols(out_ptr + seq * COLS, x_ptr + flat * COLS, nodes > 0, COLS, BLOCK, tl.program_id(1))


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
    _embed[grid](out, tokens, weight, num_nodes, nodes, **constants, **_options(launch_pdl))


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
    _last_row[grid](out, x, num_nodes, nodes, **constants, **_options(launch_pdl))


def constexprs(cols: int, launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of both kernels."""
    return {"COLS": cols, "BLOCK": min(_COLS, triton.next_power_of_2(cols)), "USE_PDL": launch_pdl}


def _options(launch_pdl: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
    return options | ({"launch_pdl": True} if launch_pdl else {})
