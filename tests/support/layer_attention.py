"""One layer's attention under the interpreter: random inputs, the fused launch, and its float64 reference."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from tspec.core.shapes import BLOCK_TOKENS
from tspec.core.tree import CandidateTrees, fill_ancestors
from tspec.kernels.cuda.attention import rope_attention
from tspec.kernels.cuda.attention_launch import AttentionShape
from tspec.kernels.cuda.launch import Scratch
from tspec.kernels.cuda.tuned import AttentionTuned
from tspec.kernels.reference import REFERENCES

POSITIONS = 900
TOLERANCES = {
    torch.float32: (2e-6, 2e-6, "float32 sums over the head and the context, numpy's exp2"),
    torch.float16: (2**-9, 2**-9, "queries, keys and softmax weights rounded to 11 bits, then the output"),
    torch.bfloat16: (2**-6, 2**-6, "queries, keys and softmax weights rounded to 8 bits, then the output"),
}
"""Relative, absolute, and why, by dtype: values are of size 1, and out is a mean of them."""


@dataclass(frozen=True)
class Layer:
    """Inputs of one launch, in the operands' own order after qkv; `attrs` as the op has them."""

    qkv: torch.Tensor
    tables: tuple[torch.Tensor, torch.Tensor]
    norms: tuple[torch.Tensor | None, torch.Tensor | None]
    caches: tuple[torch.Tensor, torch.Tensor]
    ancestors: torch.Tensor
    depth: torch.Tensor
    block_table: torch.Tensor
    prefix_len: torch.Tensor
    num_nodes: torch.Tensor
    attrs: dict


def make_layer(
    trees: CandidateTrees,
    prefixes: Sequence[int],
    *,
    head_dim: int = 16,
    group: int = 3,
    num_kv_heads: int = 2,
    dtype: torch.dtype = torch.float32,
    norms: bool = False,
    window: int | None = None,
    seed: int = 0,
) -> Layer:
    """Shuffled block tables; every slot from prefix_len on holds NaN, so that reading one shows."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    batch, nodes = trees.tokens.shape
    max_blocks = -(-(max(prefixes) + nodes) // BLOCK_TOKENS) + 1
    ancestors, depth = np.full((batch, nodes), -1, np.int64), np.full((batch, nodes), 10**6, np.int32)
    fill_ancestors(trees.parents, trees.num_nodes, ancestors, depth)
    table = torch.randperm(batch * max_blocks, generator=generator).view(batch, max_blocks).int()
    caches = [normal(batch * max_blocks, num_kv_heads, BLOCK_TOKENS, head_dim).to(dtype) for _ in "kv"]
    for cache in caches:
        spoil(cache, table, prefixes)
    attrs = {
        "head_dim": head_dim,
        "num_heads": group * num_kv_heads,
        "num_kv_heads": num_kv_heads,
        "eps": 1e-6,
        "scale": head_dim**-0.5,
        "window": window,
    }
    angles = normal(POSITIONS, head_dim // 2) * 3
    qkv = normal(batch, nodes, (group + 2) * num_kv_heads * head_dim).to(dtype)
    lines = torch.from_numpy(ancestors), torch.from_numpy(depth)
    places = table, torch.tensor(prefixes, dtype=torch.int32), torch.from_numpy(trees.num_nodes)
    scales = (normal(head_dim), normal(head_dim)) if norms else (None, None)
    return Layer(qkv, (angles.cos(), angles.sin()), scales, tuple(caches), *lines, *places, attrs)


def spoil(cache: torch.Tensor, table: torch.Tensor, prefixes: Sequence[int]) -> None:
    """Write NaN to each slot of each row from its prefix on."""
    for row, prefix in enumerate(prefixes):
        for slot in range(prefix, table.shape[1] * BLOCK_TOKENS):
            cache[table[row, slot // BLOCK_TOKENS], :, slot % BLOCK_TOKENS] = torch.nan


class Attention:
    """The launch with its static scratch, which holds NaN at first; `run` may be called again and again."""

    def __init__(self, layer: Layer, tuned: AttentionTuned) -> None:
        self.tuned = tuned
        batch, nodes, _ = layer.qkv.shape
        heads = layer.attrs["num_heads"], layer.attrs["num_kv_heads"], layer.attrs["head_dim"]
        need = AttentionShape(batch, nodes, *heads, layer.block_table.shape[1]).scratch_bytes(tuned)
        partials = torch.full((need.partials // 4,), torch.nan)
        self.scratch = Scratch(partials, torch.zeros(need.counters // 4, dtype=torch.int32))

    def run(self, layer: Layer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return out and both caches; the layer's own stay as they are."""
        batch, nodes, _ = layer.qkv.shape
        width = layer.attrs["num_heads"] * layer.attrs["head_dim"]
        out = torch.full((batch, nodes, width), torch.nan, dtype=layer.qkv.dtype)
        caches = [cache.clone() for cache in layer.caches]
        rope_attention(
            out, *caches, layer.qkv, *layer.tables, *layer.norms,
            layer.ancestors, layer.depth, layer.block_table, layer.prefix_len, layer.num_nodes,
            tuned=self.tuned, scratch=self.scratch, **layer.attrs,
        )  # fmt: skip
        assert not self.scratch.counters.any(), "a counter was left set"
        return out, *caches


def reference(layer: Layer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in float64, padding's depths set to 0; caches are rounded to their dtype, as they are stored."""
    live = torch.arange(layer.qkv.shape[1]) < layer.num_nodes[:, None]
    depth = torch.where(live, layer.depth, 0)
    wide = [None if each is None else each.double() for each in (layer.qkv, *layer.tables, *layer.norms)]
    places = layer.ancestors, depth, layer.block_table, layer.prefix_len, layer.num_nodes
    return REFERENCES["rope_attention"](layer.attrs, *wide, *layer.caches, *places)


def hold(layer: Layer, tuned: AttentionTuned) -> None:
    """Demand the reference's outputs, its caches, and each byte of a slot that no node has."""
    out, *caches = Attention(layer, tuned).run(layer)
    expected, *written = reference(layer)
    relative, absolute, _ = TOLERANCES[layer.qkv.dtype]
    torch.testing.assert_close(out.double(), expected, rtol=relative, atol=absolute)
    for found, want, before in zip(caches, written, layer.caches, strict=True):
        torch.testing.assert_close(found, want, rtol=relative, atol=absolute, equal_nan=True)
        kept = (want == before) | (want.isnan() & before.isnan())
        bits = torch.int32 if found.dtype is torch.float32 else torch.int16
        assert torch.equal(found.view(bits)[kept], before.view(bits)[kept])


def level_of(layer: Layer, caches: Sequence[torch.Tensor], start: int, width: int) -> Layer:
    """Nodes [start, start + width) of a tree alone, those before them in the caches; padded to the width."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        some = tensor[:, start : start + width]
        padding = torch.full((len(some), width - some.shape[1], *some.shape[2:]), -7, dtype=some.dtype)
        return torch.cat([some, padding], dim=1)

    return replace(
        layer,
        qkv=cut(layer.qkv),
        caches=tuple(caches),
        ancestors=cut(layer.ancestors),
        depth=cut(layer.depth),
        num_nodes=(layer.num_nodes - start).clamp(0, width),
        attrs=layer.attrs | {"first_node": start},
    )


def from_slot_1(layer: Layer) -> Layer:
    """The same with a first slot that holds nothing: NaN."""
    for cache in layer.caches:
        cache[layer.block_table[:, 0].long(), :, 0] = torch.nan
    return replace(layer, attrs=layer.attrs | {"first_slot": 1})


def root_alone(layer: Layer, caches: Sequence[torch.Tensor], row: int, node: int) -> Layer:
    """Plain decoding of one node of a chain: a batch of one, the nodes before it committed."""
    return replace(
        layer,
        qkv=layer.qkv[row : row + 1, node : node + 1].contiguous(),
        caches=tuple(caches),
        ancestors=torch.ones(1, 1, dtype=torch.int64),
        depth=torch.zeros(1, 1, dtype=torch.int32),
        block_table=layer.block_table[row : row + 1].contiguous(),
        prefix_len=layer.prefix_len[row : row + 1] + node,
        num_nodes=torch.ones(1, dtype=torch.int32),
    )
