"""Move the keys and values of accepted nodes together, in all layers at once.

    caches[layer, slot prefix_len + d + 1] = caches[layer, slot prefix_len + path[d]], for d in [0, num_out - 1)

Shapes    k_cache, v_cache [layers, num_blocks, G, 64, D], one tensor a side; path [B, T]; num_out, prefix_len [B];
          block_table [B, M]
Dtypes    caches any, moved as they are; integers int32
Layout    contiguous; offsets into caches are int64
Grid      (layers * G, B). A program moves the rows of one KV head of one layer; where the path is a chain, or nothing
          was accepted, it reads path and returns
Cost      reads and writes 2 * D elements a KV head, a layer and a moved node
Rows      independent
Order     path ascends and path[d] > d. Up to 16 nodes are read, then written, in ascending order: no slot is
          written before it was read
Errors    ContractError from the launcher for any line above; the kernel itself checks nothing
Oracle    tspec/kernels/reference/kv_cache.py::kv_commit
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cuda.launch import check_tensors

_TILE = tl.constexpr(BLOCK_TOKENS)
_PIECE = tl.constexpr(16)


@triton.jit
def _slot_offset(table, slot, live, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Elements between the start of a layer's head 0 and each slot of head 0."""
    block = tl.load(table + slot // _TILE, mask=live, other=0).to(tl.int64)
    return block * (KV_HEADS * _TILE * HEAD_DIM) + slot % _TILE * HEAD_DIM


@triton.jit(do_not_specialize=["layer_stride", "bucket_nodes", "max_blocks"])
def _kv_commit(
    k_ptr, v_ptr, path_ptr, num_out_ptr, prefix_len_ptr, block_table_ptr,
    layer_stride, bucket_nodes, max_blocks,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    seq = tl.program_id(1).to(tl.int64)
    layer, head = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS
    num_moved = tl.load(num_out_ptr + seq) - 1
    prefix = tl.load(prefix_len_ptr + seq)
    table = block_table_ptr + seq * max_blocks
    dim = tl.arange(0, DIMS)
    start = layer.to(tl.int64) * layer_stride + head * (_TILE * HEAD_DIM) + dim
    for first in range(0, num_moved, _PIECE):
        depth = first + tl.arange(0, _PIECE)
        node = tl.load(path_ptr + seq * bucket_nodes + depth, mask=depth < num_moved, other=0)
        is_moved = (depth < num_moved) & (node != depth + 1)
        if tl.max(is_moved.to(tl.int32), axis=0) > 0:
            mask = is_moved[:, None] & (dim < HEAD_DIM)[None, :]
            source = _slot_offset(table, prefix + node, is_moved, KV_HEADS, HEAD_DIM)
            target = _slot_offset(table, prefix + depth + 1, is_moved, KV_HEADS, HEAD_DIM)
            source, target = source[:, None] + start[None, :], target[:, None] + start[None, :]
            k = tl.load(k_ptr + source, mask=mask)
            v = tl.load(v_ptr + source, mask=mask)
            tl.debug_barrier()
            tl.store(k_ptr + target, k, mask=mask)
            tl.store(v_ptr + target, v, mask=mask)


def kv_commit(k_cache, v_cache, path, num_out, prefix_len, block_table, *, launch_pdl: bool = False) -> None:
    """Launch; see the module. Changes the caches in place."""
    num_layers, _, num_kv_heads, _, head_dim = k_cache.shape
    batch, nodes = path.shape
    caches = (num_layers, k_cache.shape[1], num_kv_heads, BLOCK_TOKENS, head_dim)
    check_tensors(
        "kv_commit",
        {
            "k_cache": (k_cache, caches, k_cache.dtype),
            "v_cache": (v_cache, caches, k_cache.dtype),
            "path": (path, (batch, nodes), torch.int32),
            "num_out": (num_out, (batch,), torch.int32),
            "prefix_len": (prefix_len, (batch,), torch.int32),
            "block_table": (block_table, (batch, block_table.shape[1]), torch.int32),
        },
    )
    _kv_commit[(num_layers * num_kv_heads, batch)](
        k_cache, v_cache, path, num_out, prefix_len, block_table,
        k_cache.stride(0), nodes, block_table.shape[1],
        **constexprs(num_kv_heads, head_dim, launch_pdl), num_warps=4, enable_fp_fusion=False,
        **({"launch_pdl": True} if launch_pdl else {}),
    )  # fmt: skip


def constexprs(num_kv_heads: int, head_dim: int, launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernel."""
    dims = triton.next_power_of_2(head_dim)
    return {"KV_HEADS": num_kv_heads, "HEAD_DIM": head_dim, "DIMS": dims, "USE_PDL": launch_pdl}
