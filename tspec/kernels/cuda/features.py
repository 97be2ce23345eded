"""Rows of the target that a proposer reads, kept by position in the blocks of the KV cache.

    keep_features  features[block of position prefix_len + j, columns from `column` on] = x[row, node] of the j-th
                   committed node: with a verdict the root, then those of `path`, num_out in all; without, node j
    read_features  out[row, node] = `width` columns from `column` on of position prefix_len + depth - 1; zeros for
                   padding, and for a node at position 0, which has none before it

Shapes    x, out [B, T, X]; path, depth [B, T]; num_out, num_nodes, prefix_len [B]; block_table [B, M];
          features [num_blocks, 64, F]; column + X at most F. path and num_out may be None
Dtypes    x, out and features share one, moved as they are; integers int32
Layout    all contiguous; offsets into features and rows are int64
Grid      (T, B, pieces of X)
Cost      each row kept or read: X elements in, X out. Nodes that are not kept are not read
Padding   rows past num_nodes keep nothing, whatever the verdict says of them
Rows      independent; nothing is summed
Errors    ContractError from the launchers for any line above; the kernels check nothing
Oracle    tspec/kernels/reference/draft.py
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tspec.core.errors import ContractError
from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cuda.launch import check_tensors
from tspec.kernels.cuda.rows import constexprs as row_constexprs
from tspec.kernels.cuda.rows import copy_cols, row_options

_TILE = tl.constexpr(BLOCK_TOKENS)


@triton.jit
def _slot_row(block_table_ptr, seq, position, live, max_blocks):
    """Which row of the features, blocks one after the other, a position of a sequence is; int64, 0 where not live."""
    table = block_table_ptr + seq * max_blocks
    block = tl.load(table + position // _TILE, mask=live, other=0).to(tl.int64)
    return tl.where(live, block * _TILE + position % _TILE, 0)


@triton.jit(do_not_specialize=["bucket_nodes", "max_blocks"])
def _keep_features(
    features_ptr, x_ptr, path_ptr, num_out_ptr, num_nodes_ptr, prefix_len_ptr, block_table_ptr,
    bucket_nodes, max_blocks, column,
    FEATURES: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    place, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
    count = tl.load(num_nodes_ptr + seq)
    if num_out_ptr is not None:
        count = tl.where(count > 0, tl.load(num_out_ptr + seq), 0)
    if place < count:
        node = place
        if path_ptr is not None:
            node = tl.load(path_ptr + seq * bucket_nodes + place - 1, mask=place > 0, other=0)
        row = _slot_row(block_table_ptr, seq, tl.load(prefix_len_ptr + seq) + place, True, max_blocks)
        source = (seq * bucket_nodes + node) * COLS
        copy_cols(features_ptr + row * FEATURES + column, x_ptr + source, True, COLS, BLOCK, tl.program_id(2))


@triton.jit(do_not_specialize=["bucket_nodes", "max_blocks"])
def _read_features(
    out_ptr, features_ptr, depth_ptr, block_table_ptr, prefix_len_ptr, num_nodes_ptr,
    bucket_nodes, max_blocks, column,
    FEATURES: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    node, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
    flat = seq * bucket_nodes + node
    live = node < tl.load(num_nodes_ptr + seq)
    before = tl.load(prefix_len_ptr + seq) + tl.load(depth_ptr + flat, mask=live, other=0) - 1
    live = live & (before >= 0)
    row = _slot_row(block_table_ptr, seq, before, live, max_blocks)
    copy_cols(
        out_ptr + flat * COLS, features_ptr + row * FEATURES + column, live, COLS, BLOCK, tl.program_id(2)
    )


def keep_features(
    features, x, path, num_out, num_nodes, prefix_len, block_table, *, column: int, launch_pdl: bool = False
) -> None:
    """Launch; see the module. Changes features in place. Errors: ContractError."""
    batch, nodes, cols = x.shape
    _check(
        "keep_features", features, column, cols, (batch, nodes), x.dtype,
        x=x, path=path, num_out=num_out, num_nodes=num_nodes, prefix_len=prefix_len, block_table=block_table,
    )  # fmt: skip
    constants = constexprs(features.shape[-1], cols, launch_pdl)
    _keep_features[(nodes, batch, triton.cdiv(cols, constants["BLOCK"]))](
        features, x, path, num_out, num_nodes, prefix_len, block_table, nodes, block_table.shape[1], column,
        **constants, **row_options(launch_pdl),
    )  # fmt: skip


def read_features(
    out, features, depth, block_table, prefix_len, num_nodes,
    *, column: int, width: int, launch_pdl: bool = False,
) -> None:  # fmt: skip
    """Launch; see the module. Errors: ContractError."""
    batch, nodes = depth.shape
    _check(
        "read_features", features, column, width, (batch, nodes), features.dtype,
        out=out, depth=depth, num_nodes=num_nodes, prefix_len=prefix_len, block_table=block_table,
    )  # fmt: skip
    constants = constexprs(features.shape[-1], width, launch_pdl)
    _read_features[(nodes, batch, triton.cdiv(width, constants["BLOCK"]))](
        out, features, depth, block_table, prefix_len, num_nodes, nodes, block_table.shape[1], column,
        **constants, **row_options(launch_pdl),
    )  # fmt: skip


def constexprs(features: int, cols: int, launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of both kernels."""
    return {"FEATURES": features, **row_constexprs(cols, launch_pdl)}


def _check(
    kind: str, features, column: int, cols: int, nodes: tuple[int, int], dtype: torch.dtype, **tensors
) -> None:
    """Hold the operands against their shapes, dtypes and layout. Errors: ContractError naming the first that is off."""
    width = features.shape[-1]
    if not 0 <= column <= width - cols:
        raise ContractError(
            f"columns of {kind}",
            got=f"{cols} from {column} on",
            need=f"{width} in all",
            fix="Check the graph.",
        )
    batch = nodes[0]
    needs = {
        "x": ((*nodes, cols), dtype),
        "out": ((*nodes, cols), dtype),
        "path": (nodes, torch.int32),
        "depth": (nodes, torch.int32),
        "block_table": ((batch, tensors["block_table"].shape[1]), torch.int32),
    }
    each_row = ((batch,), torch.int32)
    shapes = {name: (tensor, *needs.get(name, each_row)) for name, tensor in tensors.items()}
    kept = (features.shape[0], BLOCK_TOKENS, width)
    check_tensors(kind, {"features": (features, kept, dtype), **shapes})
