"""Building blocks of the cases that hold CPU kernels against their references: rows, weights, trees, caches."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from support.cpu_pass import Case, static_inputs

from tspec.core.dtypes import DType
from tspec.core.shapes import BLOCK_TOKENS
from tspec.core.tree import CandidateTrees
from tspec.graph.builder import TOKENS, derived, weight
from tspec.graph.ir import Op, Role, Shape, Value
from tspec.runtime.torch_dtypes import TORCH_DTYPES

DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
RAGGED = (5, 17, 1, 3)
"""Nodes a row of a batch that is not full."""
ENDING = (2, 7, 0)
"""A batch whose last row has no sequence."""

GROUPS = (1, 3, 8)
"""Query heads a KV head."""
HEAD_DIMS = (8, 16, 24, 56, 64, 80, 128)
PREFIXES = ((0, 1, 63, 64), (65, 127, 128, 129), (255, 256, 300, 320))
"""Around every border of a block of 64 and a chunk of 256, for four rows of COUNTS nodes."""
COUNTS = (9, 1, 16, 4)


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One run of one kernel. `dtype` is that of its weights or KV, float32 where it has neither."""

    kind: str
    dtype: DType
    label: str
    make: Callable[["Maker"], Case]

    def __str__(self) -> str:
        return f"{self.kind}-{self.dtype.short}-{self.label}"

    def build(self) -> Case:
        return self.make(Maker(str(self)))


class Maker:
    """Random values, the same ones for the same name."""

    def __init__(self, name: str) -> None:
        self.seed = zlib.crc32(name.encode())
        self.generator = torch.Generator().manual_seed(self.seed)
        self.tensors: dict[str, torch.Tensor] = {}

    def normal(self, *shape: int, dtype: DType = DType.FLOAT32) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(TORCH_DTYPES[dtype])

    def rows(self, name: str, num_rows: int, cols: int) -> tuple[Op, Value]:
        """An op that makes float32 rows: the embedding of tokens that number all nodes of the bucket."""
        self.tensors[f"{name}.table"] = self.normal(num_rows, cols)
        table = weight(f"{name}.table", (num_rows, cols), DType.FLOAT32)
        out = Value(name, ("B", "T", cols), DType.FLOAT32)
        return Op("embed", (out,), (TOKENS, table)), out

    def weight(self, name: str, *shape: int, dtype: DType = DType.FLOAT32, scale: float = 1.0) -> Value:
        self.tensors[name] = self.normal(*shape, dtype=dtype) * scale
        return weight(name, shape, dtype)

    def rope_tables(self, positions: int, head_dim: int) -> tuple[Value, Value]:
        angles = self.normal(positions, head_dim // 2) * 3
        self.tensors |= {"rope.cos": angles.cos(), "rope.sin": angles.sin()}
        shape = ("max_positions", head_dim // 2)
        return derived("rope.cos", shape), derived("rope.sin", shape)

    def inputs(self, trees: CandidateTrees, prefix_len: Sequence[int] | None = None) -> dict[str, np.ndarray]:
        prefix = [0] * len(trees.num_nodes) if prefix_len is None else list(prefix_len)
        return static_inputs(trees, prefix, seed=self.seed)

    def draws(self, temperature: Sequence[float]) -> dict[str, np.ndarray]:
        """Temperatures and seeds, one a sequence."""
        seeds = np.random.default_rng(self.seed).integers(0, 1 << 63, len(temperature))
        return {"temperature": np.array(temperature, np.float32), "seed": seeds}

    def caches(
        self,
        inputs: dict[str, np.ndarray],
        num_kv_heads: int,
        head_dim: int,
        dtype: DType,
        layers: int = 1,
        slots: Sequence[range] | None = None,
    ):
        """Keys and values at `slots` of each sequence, else at those up to its last node; NaN at all others."""
        table = inputs["block_table"]
        shape = (table.size, num_kv_heads, BLOCK_TOKENS, head_dim)
        written = torch.zeros(table.size, BLOCK_TOKENS, dtype=torch.bool)
        if slots is None:
            both = zip(inputs["prefix_len"], inputs["num_nodes"], strict=True)
            slots = [range(prefix + count if count else 0) for prefix, count in both]
        for row, places in enumerate(slots):
            for slot in places:
                written[table[row, slot // BLOCK_TOKENS], slot % BLOCK_TOKENS] = True
        names = [f"{side}_cache.{layer}" for layer in range(layers) for side in "kv"]
        nothing = torch.tensor(torch.nan).to(TORCH_DTYPES[dtype])
        return {
            name: torch.where(written[:, None, :, None], self.normal(*shape, dtype=dtype), nothing)
            for name in names
        }


def spread(kind: str, make: Callable[..., Case], dtype: DType, label: str, **settings: Any) -> KernelCase:
    return KernelCase(kind, dtype, label, partial(make, dtype=dtype, **settings))


def state(name: str, num_kv_heads: int, head_dim: int, dtype: DType, version: int = 0) -> Value:
    shape: Shape = ("num_blocks", num_kv_heads, BLOCK_TOKENS, head_dim)
    return Value(name if version == 0 else f"{name}@{version}", shape, dtype, Role.STATE)


def chains(counts: Sequence[int]) -> CandidateTrees:
    """A chain of so many nodes in each row; tokens number all nodes of the bucket."""
    width = max(counts)
    parents = np.tile(np.arange(-1, width - 1, dtype=np.int32), (len(counts), 1))
    return numbered(CandidateTrees(np.zeros_like(parents), parents, np.array(counts, np.int32)))


def numbered(trees: CandidateTrees) -> CandidateTrees:
    """The same trees, each node with a token of its own."""
    numbers = np.arange(trees.tokens.size, dtype=np.int32).reshape(trees.tokens.shape)
    return CandidateTrees(numbers, trees.parents, trees.num_nodes)


def random_trees(counts: Sequence[int], seed: int) -> CandidateTrees:
    """Trees in which each node hangs below a random earlier one."""
    generator = np.random.default_rng(seed)
    trees = chains(counts)
    for row, count in enumerate(counts):
        for node in range(1, count):
            trees.parents[row, node] = generator.integers(0, node)
    return trees
