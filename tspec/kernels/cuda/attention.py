"""Attention of a layer in one launch: split qkv, norm and rotate heads, write keys and values, attend, join chunks.

    q, k, v = split(qkv); q, k = rotate(norm(q)), rotate(norm(k)); caches[prefix_len + first_node + node] = k, v
    out[node, head] = sum over visible slots of softmax(scale * q . k) * v

Visible are slots from first_slot on of the prefix, and those of a node's ancestors and its own. A tree that grows by
levels has a launch a level: `first_node` of its nodes are in the caches already, and node `node` of the launch has bit
first_node + node of the ancestors.

Shapes    qkv [B, T, (A + 2 G) * D]; out [B, T, A * D]; cos, sin [P, D / 2]; q_norm, k_norm [D] or None;
          k_cache, v_cache [num_blocks, G, 64, D]; ancestors, depth [B, T]; block_table [B, M];
          prefix_len, num_nodes [B]; A / G is 1 to 16, D even and at most 256, first_node + T at most 64
Dtypes    qkv and out share float32, bf16 or fp16, the caches share one of them; cos, sin and norms float32;
          ancestors int64, the other integers int32. Scores, softmax and sums float32; q, k and v are rounded to
          the caches' dtype, weights of the softmax too
Layout    all contiguous; offsets into caches, qkv, out and scratch are int64
Grid      (G * row tiles; chunks of the longest context, last chunk first; B). Row r of a KV head is query head r % g
          of node r // g, g = A / G. Programs with no live row or no visible slot return at once
Cost      reads each KV tile once a row tile, with no mask work but in the at most two tiles that hold nodes of this
          pass (and against a window, where there is one)
Writes    every row tile of a KV head writes the nodes' keys and values, the same bytes, and after a barrier reads
          what it wrote itself; no program reads what another one writes, but for the partial sums
Scratch   static (AttentionShape.scratch_bytes); counters are 0 before the first launch and after each. Of the
          programs that share rows the last to arrive joins their partial sums, first chunk first
Padding   rows past num_nodes write nothing to the caches and zeros to out
Rows      independent, where all values are finite: tiles and chunks are cut at absolute slots, masked slots add
          exactly nothing, and the order of summation is the same in the loops with and without masks. So a node whose
          path is the nodes 0, 1, ... up to itself, as in every chain, has the bits of plain decoding. On the path of
          another node other nodes' slots lie between, and its keys are added in other places of a tile
Tuning    key (A, G, D, cache dtype): chunk_tiles and the split of slots over warps fix the order of summation
Errors    ContractError from the launcher for any line above; the kernel itself checks nothing
Oracle    tspec/kernels/reference/attention.py::rope_attention
Source    online softmax, arXiv:1805.02867; split over KV as in Flash-Decoding
"""

import torch
import triton
import triton.language as tl

from tspec.core.errors import ContractError
from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cuda.attention_launch import AttentionShape, launch_options
from tspec.kernels.cuda.attention_tile import (
    add_tile,
    load_halves,
    load_tile,
    rotate_heads,
    seen_slots,
    tile_scores,
    visible_slots,
    write_nodes,
)
from tspec.kernels.cuda.chunks import live_tiles
from tspec.kernels.cuda.launch import Scratch, check_tensors
from tspec.kernels.cuda.partials import join_partials, last_to_arrive, store_out, store_partial
from tspec.kernels.cuda.tuned import AttentionTuned

_LOG2E = 1.4426950408889634
_TILE = tl.constexpr(BLOCK_TOKENS)


@triton.jit(do_not_specialize=["bucket_nodes", "max_blocks", "first_node", "scale_log2", "eps"])
def _rope_attention(
    out_ptr, k_ptr, v_ptr, partial_ptr, counter_ptr,
    qkv_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr,
    ancestors_ptr, depth_ptr, block_table_ptr, prefix_len_ptr, num_nodes_ptr,
    bucket_nodes, max_blocks, first_node, scale_log2, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, DIMS: tl.constexpr,
    WINDOW: tl.constexpr, FIRST_SLOT: tl.constexpr, CHUNK_TILES: tl.constexpr, OCTAVES: tl.constexpr,
    ROWS: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = HEADS // KV_HEADS
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row_tiles = tl.num_programs(0) // KV_HEADS
    kv_head, row_tile = tl.program_id(0) // row_tiles, tl.program_id(0) % row_tiles
    num_chunks = tl.num_programs(1)
    chunk, seq = num_chunks - 1 - tl.program_id(1), tl.program_id(2).to(tl.int64)
    prefix, nodes = tl.load(prefix_len_ptr + seq), tl.load(num_nodes_ptr + seq)
    flat, table = seq * bucket_nodes, block_table_ptr + seq * max_blocks

    row = row_tile * ROWS + tl.arange(0, ROWS)
    node, head = row // GROUP, kv_head * GROUP + row % GROUP
    live, inside = node < nodes, node < bucket_nodes
    out = ((flat + node) * HEADS + head) * HEAD_DIM
    if row_tile * ROWS >= nodes * GROUP:
        if chunk == 0:
            store_out(out_ptr, out, tl.zeros([DIMS, ROWS], tl.float32), live, inside, HEAD_DIM, DIMS)
        return
    behind = prefix + first_node
    start, end, first_chunk, end_chunk = live_tiles(
        chunk, prefix, behind + nodes, CHUNK_TILES, OCTAVES, WINDOW
    )
    if start >= end:
        return
    edge = tl.maximum(prefix // _TILE, start)
    if edge < end:
        write_nodes(
            k_ptr, v_ptr, qkv_ptr, cos_ptr, sin_ptr, k_norm_ptr, eps, depth_ptr, table, flat, prefix, first_node,
            tl.maximum(edge * _TILE - behind, 0), tl.minimum(end * _TILE - behind, nodes), kv_head,
            HEADS, KV_HEADS, HEAD_DIM, HALF, DIMS,
        )  # fmt: skip
        tl.debug_barrier()

    position = prefix + tl.load(depth_ptr + flat + node, mask=live, other=0)
    ancestors = tl.load(ancestors_ptr + flat + node, mask=live, other=0)
    source = (flat + node) * ((HEADS + 2 * KV_HEADS) * HEAD_DIM) + head * HEAD_DIM
    low, high = load_halves(qkv_ptr, source, live, HEAD_DIM, HALF)
    low, high = rotate_heads(low, high, position, live, cos_ptr, sin_ptr, q_norm_ptr, eps, HEAD_DIM, HALF)
    top, weight, sums = attend_tiles(
        k_ptr, v_ptr, low, high, position, ancestors, table, start, edge, end, prefix, first_node + nodes, kv_head,
        scale_log2, KV_HEADS, HEAD_DIM, HALF, DIMS, WINDOW, FIRST_SLOT, ROWS,
    )  # fmt: skip
    if end_chunk - first_chunk > 1:
        share = seq * tl.num_programs(0) + tl.program_id(0)
        partials = partial_ptr + share * num_chunks * ((DIMS + 2) * ROWS)
        store_partial(partials, chunk, top, weight, sums, DIMS, ROWS)
        if not last_to_arrive(counter_ptr + share, end_chunk - first_chunk):
            return
        weight, sums = join_partials(partials, first_chunk, end_chunk, DIMS, ROWS)
    store_out(out_ptr, out, sums / tl.where(weight > 0, weight, 1.0)[None, :], live, inside, HEAD_DIM, DIMS)


@triton.jit
def attend_tiles(
    k_ptr, v_ptr, low, high, position, ancestors, table, start, edge, end, prefix, nodes, kv_head, scale_log2,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, DIMS: tl.constexpr,
    WINDOW: tl.constexpr, FIRST_SLOT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Softmax over tiles [start, end) of a chunk: those before `edge` hold the prefix alone, the others nodes too.

    `nodes` are all of the tree so far; low, high: both halves of the queries, float32 [ROWS, HALF].
    """
    q_low, q_high = tl.trans(low.to(k_ptr.dtype.element_ty)), tl.trans(high.to(k_ptr.dtype.element_ty))
    lines = tl.reduce_or(ancestors, axis=0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([DIMS, ROWS], tl.float32)
    block = tl.load(table + start)
    for tile in range(start, tl.minimum(edge, end)):
        slot = tile * _TILE + tl.arange(0, _TILE)
        seen = slot >= FIRST_SLOT if FIRST_SLOT > 0 else None
        k_low, k_high, v = load_tile(k_ptr, v_ptr, block, kv_head, seen, KV_HEADS, HEAD_DIM, HALF, DIMS)
        scores = tile_scores(k_low, k_high, q_low, q_high, scale_log2)
        if WINDOW > 0:
            scores = tl.where(slot[:, None] > position[None, :] - WINDOW, scores, float("-inf"))
        if FIRST_SLOT > 0:
            scores = tl.where(slot[:, None] >= FIRST_SLOT, scores, float("-inf"))
        top, weight, sums = add_tile(scores, v, top, weight, sums)
        block = tl.load(table + tl.minimum(tile + 1, end - 1))
    for tile in tl.range(edge, end, num_stages=1):
        block = tl.load(table + tile)
        slot = tile * _TILE + tl.arange(0, _TILE)
        seen = seen_slots(slot, prefix, nodes, lines, FIRST_SLOT)
        k_low, k_high, v = load_tile(k_ptr, v_ptr, block, kv_head, seen, KV_HEADS, HEAD_DIM, HALF, DIMS)
        visible = visible_slots(slot, prefix, nodes, ancestors, position, WINDOW, FIRST_SLOT)
        scores = tl.where(visible, tile_scores(k_low, k_high, q_low, q_high, scale_log2), float("-inf"))
        top, weight, sums = add_tile(scores, v, top, weight, sums)
    return top, weight, sums


def rope_attention(
    out, k_cache, v_cache,
    qkv, cos, sin, q_norm, k_norm, ancestors, depth, block_table, prefix_len, num_nodes,
    *, head_dim: int, num_heads: int, num_kv_heads: int, eps: float, scale: float, window: int | None,
    first_node: int = 0, first_slot: int = 0, tuned: AttentionTuned, scratch: Scratch, launch_pdl: bool = False,
) -> None:  # fmt: skip
    """Launch; see the module. Writes out, the caches and scratch; allocates nothing and reads no tensor."""
    batch, nodes, _ = qkv.shape
    shape = AttentionShape(batch, nodes, num_heads, num_kv_heads, head_dim, block_table.shape[1])
    _check(
        shape, tuned, scratch, qkv.dtype,
        out=out, k_cache=k_cache, v_cache=v_cache, qkv=qkv, cos=cos, sin=sin, q_norm=q_norm, k_norm=k_norm,
        ancestors=ancestors, depth=depth, block_table=block_table, prefix_len=prefix_len, num_nodes=num_nodes,
    )  # fmt: skip
    _rope_attention[shape.grid(tuned)](
        out, k_cache, v_cache, scratch.partials, scratch.counters,
        qkv, cos, sin, q_norm, k_norm, ancestors, depth, block_table, prefix_len, num_nodes,
        nodes, shape.max_blocks, first_node, scale * _LOG2E, eps,
        **shape.constexprs(tuned, window, first_slot, launch_pdl), **launch_options(tuned, launch_pdl),
    )  # fmt: skip


def _check(
    shape: AttentionShape, tuned: AttentionTuned, scratch: Scratch, dtype: torch.dtype, **tensors
) -> None:
    """Hold the operands against their shapes, dtypes and layout. Errors: ContractError naming the first that is off."""
    rows, half = (shape.batch, shape.nodes), shape.head_dim // 2
    caches = (tensors["k_cache"].shape[0], shape.num_kv_heads, BLOCK_TOKENS, shape.head_dim)
    angles, kept_as = (tensors["cos"].shape[0], half), tensors["k_cache"].dtype
    qkv_width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    needs = {
        "out": ((*rows, shape.num_heads * shape.head_dim), dtype),
        "k_cache": (caches, kept_as),
        "v_cache": (caches, kept_as),
        "qkv": ((*rows, qkv_width), dtype),
        "cos": (angles, torch.float32),
        "sin": (angles, torch.float32),
        "q_norm": ((shape.head_dim,), torch.float32),
        "k_norm": ((shape.head_dim,), torch.float32),
        "ancestors": (rows, torch.int64),
        "depth": (rows, torch.int32),
        "block_table": ((shape.batch, shape.max_blocks), torch.int32),
        "prefix_len": ((shape.batch,), torch.int32),
        "num_nodes": ((shape.batch,), torch.int32),
    }
    check_tensors("rope_attention", {name: (tensors[name], *need) for name, need in needs.items()})
    for name, tensor, need in zip(scratch._fields, scratch, shape.scratch_bytes(tuned), strict=True):
        has_bytes = 0 if tensor is None else tensor.nbytes
        if has_bytes < need:
            raise ContractError(
                f"{name} of rope_attention",
                got=f"{has_bytes} bytes",
                need=f"{need} bytes",
                fix="Size the scratch with AttentionShape.scratch_bytes.",
            )
