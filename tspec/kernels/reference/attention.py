"""Attention of tree nodes: to the committed slots of their sequence, to their ancestors, to themselves."""

import torch

from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.reference.rope import rope_kv_write
from tspec.kernels.reference.wide import widen


def attention(
    attrs: dict,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    ancestors: torch.Tensor,
    prefix_len: torch.Tensor,
    num_nodes: torch.Tensor,
    block_table: torch.Tensor,
) -> tuple[torch.Tensor]:
    """out = softmax(scale * q @ k.T) @ v over the keys that each node sees; zeros for padding.

    The nodes are number first_node to first_node + T of their tree: those before them are in the cache already.
    Slots before first_slot are seen by none; a node that sees nothing gets NaN. Only a chain may stand before it.
    """
    q = widen(q)
    out = torch.zeros_like(q)
    first_node, first_slot = attrs.get("first_node", 0), attrs.get("first_slot", 0)
    for row, count in enumerate(num_nodes.tolist()):
        start = int(prefix_len[row])
        slot = torch.arange(start + first_node + count)
        block, offset = block_table[row, slot // BLOCK_TOKENS].long(), slot % BLOCK_TOKENS
        keys, values = (_per_query_head(cache[block, :, offset], q, attrs) for cache in (k_cache, v_cache))
        heads = q[row, :count].unflatten(-1, (-1, attrs["head_dim"]))
        scores = torch.einsum("nhd,shd->hns", heads, keys) * attrs["scale"]
        seen = visible(ancestors[row, :count], start, attrs["window"], first_node) & (slot >= first_slot)
        scores = scores.masked_fill(~seen, -torch.inf)
        values = values.masked_fill(
            ~seen.any(0)[:, None, None], 0
        )  # of a slot that nobody sees, no NaN either
        out[row, :count] = torch.einsum("hns,shd->nhd", scores.softmax(-1), values).flatten(-2)
    return (out,)


def rope_attention(
    attrs: dict,
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    ancestors: torch.Tensor,
    depth: torch.Tensor,
    block_table: torch.Tensor,
    prefix_len: torch.Tensor,
    num_nodes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """rope_kv_write, then attention over what it wrote: (out, k_cache, v_cache)."""
    place = (depth, block_table, prefix_len, num_nodes)
    q, new_k, new_v = rope_kv_write(attrs, qkv, cos, sin, q_norm, k_norm, k_cache, v_cache, *place)
    (out,) = attention(attrs, q, new_k, new_v, ancestors, prefix_len, num_nodes, block_table)
    return out, new_k, new_v


def visible(ancestors: torch.Tensor, start: int, window: int | None, first_node: int = 0) -> torch.Tensor:
    """[nodes, start + first_node + nodes]: the slots each node of a row sees. A window counts positions, not slots."""
    count = first_node + len(ancestors)
    is_ancestor = (ancestors[:, None] >> torch.arange(count)) & 1 == 1
    seen = torch.cat([torch.ones(len(ancestors), start, dtype=torch.bool), is_ancestor], dim=1)
    if window is None:
        return seen
    # An ancestor's position follows from how many ancestors of the node come before it.
    position = start + is_ancestor.sum(1, keepdim=True) - 1
    key_position = torch.cat(
        [torch.arange(start).expand(len(ancestors), start), start + is_ancestor.cumsum(1) - 1], dim=1
    )
    return seen & (key_position > position - window)


def _per_query_head(heads: torch.Tensor, q: torch.Tensor, attrs: dict) -> torch.Tensor:
    """[slots, KV heads, head_dim] -> [slots, query heads, head_dim]: neighbours share a KV head."""
    num_heads = q.shape[-1] // attrs["head_dim"]
    return heads.to(q.dtype).repeat_interleave(num_heads // attrs["num_kv_heads"], dim=1)
