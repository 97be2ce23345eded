"""Small kernels over rows: look up embeddings, pick each sequence's last node.

    embed      out[row, node] = weight[tokens[row, node]]; zeros where node >= num_nodes[row]
    last_row   out[row, 0] = x[row, num_nodes[row] - 1]; zeros where num_nodes[row] is 0

Shapes    tokens [B, T]; weight [V, H]; x, out [B, T or 1, H]; num_nodes [B]
Dtypes    out: that of what is read, or wider; integers int32
Layout    contiguous; row offsets are int64
Grid      embed (T, B, pieces of H), last_row (B, pieces of H)
Cost      each element read once and written once; of padding rows, and of `tokens` there, nothing is read
Rows      independent; nothing is summed
Oracle    tspec/kernels/reference: embed.py::embed, rows.py::last_row
"""

import triton
import triton.language as tl

_COLS = 1024
"""Most columns of one program."""


@triton.jit
def _copy_cols(out_ptr, in_ptr, live, COLS: tl.constexpr, BLOCK: tl.constexpr, piece):
    """One piece of a row: in, or zeros where the row is not live."""
    col = piece * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(in_ptr + col, mask=live & (col < COLS), other=0.0)
    tl.store(out_ptr + col, x.to(out_ptr.dtype.element_ty), mask=col < COLS)


@triton.jit(do_not_specialize=["bucket_nodes"])
def _embed(
    out_ptr, tokens_ptr, weight_ptr, num_nodes_ptr, bucket_nodes, COLS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    node, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
    flat = seq * bucket_nodes + node
    live = node < tl.load(num_nodes_ptr + seq)
    token = tl.load(tokens_ptr + flat, mask=live, other=0).to(tl.int64)
    _copy_cols(out_ptr + flat * COLS, weight_ptr + token * COLS, live, COLS, BLOCK, tl.program_id(2))


@triton.jit(do_not_specialize=["bucket_nodes"])
def _last_row(out_ptr, x_ptr, num_nodes_ptr, bucket_nodes, COLS: tl.constexpr, BLOCK: tl.constexpr):
    seq = tl.program_id(0).to(tl.int64)
    nodes = tl.load(num_nodes_ptr + seq)
    flat = seq * bucket_nodes + tl.maximum(nodes - 1, 0)
    _copy_cols(out_ptr + seq * COLS, x_ptr + flat * COLS, nodes > 0, COLS, BLOCK, tl.program_id(1))


def embed(out, tokens, weight, num_nodes) -> None:
    """Launch; see the module."""
    batch, nodes = tokens.shape
    sizes = _pieces(weight.shape[1])
    grid = (nodes, batch, triton.cdiv(weight.shape[1], sizes["BLOCK"]))
    _embed[grid](out, tokens, weight, num_nodes, nodes, **sizes, num_warps=4)


def last_row(out, x, num_nodes) -> None:
    """Launch; see the module."""
    batch, nodes, cols = x.shape
    sizes = _pieces(cols)
    _last_row[(batch, triton.cdiv(cols, sizes["BLOCK"]))](out, x, num_nodes, nodes, **sizes, num_warps=4)


def _pieces(cols: int) -> dict[str, int]:
    return {"COLS": cols, "BLOCK": min(_COLS, triton.next_power_of_2(cols))}
