"""Writing nodes into the paged KV cache [block, head, slot, dim], and moving the accepted ones together."""

import torch

from tspec.core.shapes import BLOCK_TOKENS


def place_of_slot(block_table: torch.Tensor, row: int, slot: int) -> tuple[int, int]:
    """Return the KV block and the offset in it of one sequence's slot."""
    return int(block_table[row, slot // BLOCK_TOKENS]), slot % BLOCK_TOKENS


def kv_write(
    attrs: dict,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    prefix_len: torch.Tensor,
    num_nodes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Store node `node` of a row at slot prefix_len + first_node + node; padding writes nothing."""
    written = k_cache.clone(), v_cache.clone()
    first = attrs.get("first_node", 0)
    _, num_heads, _, head_dim = k_cache.shape
    for row, count in enumerate(num_nodes.tolist()):
        for node in range(count):
            block, offset = place_of_slot(block_table, row, int(prefix_len[row]) + first + node)
            for cache, rows in zip(written, (k, v), strict=True):
                cache[block, :, offset] = rows[row, node].view(num_heads, head_dim).to(cache.dtype)
    return written


def kv_commit(
    attrs: dict,
    path: torch.Tensor,
    num_out: torch.Tensor,
    prefix_len: torch.Tensor,
    block_table: torch.Tensor,
    *caches: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Move slot prefix_len + path[d] to slot prefix_len + d + 1 for each accepted node, d ascending."""
    moved = tuple(cache.clone() for cache in caches)
    for row, count in enumerate(num_out.tolist()):
        start = int(prefix_len[row])
        for place, node in enumerate(path[row, : count - 1].tolist()):
            source, source_offset = place_of_slot(block_table, row, start + node)
            target, target_offset = place_of_slot(block_table, row, start + place + 1)
            for cache in moved:
                cache[target, :, target_offset] = cache[source, :, source_offset]
    return moved
