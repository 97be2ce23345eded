"""Rotary positions, in the half-rotation layout of Hugging Face, alone and fused with what surrounds them."""

import torch

from tspec.kernels.reference.kv_cache import kv_write
from tspec.kernels.reference.norm import head_norm
from tspec.kernels.reference.wide import widen


def rope(
    attrs: dict,
    x: torch.Tensor,
    depth: torch.Tensor,
    prefix_len: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor]:
    """Rotate (x[d], x[d + D/2]) of each head by the angle of position prefix_len + depth."""
    heads = widen(x).unflatten(-1, (-1, attrs["head_dim"]))
    position = (prefix_len[:, None] + depth).long()
    c, s = (table[position][:, :, None].to(heads.dtype) for table in (cos, sin))
    low, high = heads.chunk(2, dim=-1)
    return (torch.cat([low * c - high * s, high * c + low * s], dim=-1).flatten(-2),)


def rope_kv_write(
    attrs: dict,
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    depth: torch.Tensor,
    block_table: torch.Tensor,
    prefix_len: torch.Tensor,
    num_nodes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split qkv, normalise the heads of q and k, rotate them, write k and v: (q, k_cache, v_cache)."""
    kv_width = attrs["num_kv_heads"] * attrs["head_dim"]
    q, k, v = qkv.split([attrs["num_heads"] * attrs["head_dim"], kv_width, kv_width], dim=-1)
    if q_norm is not None:
        (q,) = head_norm(attrs, q, q_norm)
    if k_norm is not None:
        (k,) = head_norm(attrs, k, k_norm)
    (q,) = rope(attrs, q, depth, prefix_len, cos, sin)
    (k,) = rope(attrs, k, depth, prefix_len, cos, sin)
    caches = kv_write(attrs, k, v, k_cache, v_cache, block_table, prefix_len, num_nodes)
    return q, *caches
