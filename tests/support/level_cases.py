"""Cases of attention in the levels of a draft's tree, and the chain that each node's path is in a plain pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from support.cpu_pass import MAX_MODEL_LEN, Case, static_inputs
from support.kernel_case import DTYPES, HEAD_DIMS, KernelCase, Maker, chains, state

from tspec.core.dtypes import DType
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.graph.builder import ANCESTORS, BLOCK_TABLE, DEPTH, NUM_NODES, PREFIX_LEN, TOKENS
from tspec.graph.ir import Op, Role, Value
from tspec.graph.static_inputs import DRAFT_PREFIX, LEVEL_NODES

F32, I32, I64 = DType.FLOAT32, DType.INT32, DType.INT64
NUM_KV_HEADS = 2


@dataclass(frozen=True)
class Levels:
    """A tree a sequence that grew level by level, each node below a node of the level before.

    counts    live nodes of each level of a sequence
    prefixes  committed tokens, all with keys and values
    """

    counts: Sequence[int]
    prefixes: Sequence[int]
    width: int
    num_levels: int
    seed: int = 0

    @property
    def parents(self) -> np.ndarray:
        """Int [B, levels, W]: which node of the level before each node is below."""
        shape = (len(self.counts), self.num_levels, self.width)
        live = np.clip(np.array(self.counts), 1, self.width)[:, None, None]
        return np.random.default_rng(self.seed).integers(0, live, shape)

    def path(self, row: int, level: int, node: int) -> list[int]:
        """Nodes from level 0 to `level`, each counted within its level."""
        line = [node]
        for above in range(level, 0, -1):
            line.insert(0, int(self.parents[row, above, line[0]]))
        return line

    def token(self, row: int, level: int, node: int) -> int:
        """Each node has a token of its own."""
        return (row * self.num_levels + level) * self.width + node

    def mask(self, row: int, level: int, node: int) -> int:
        return sum(1 << (at * self.width + each) for at, each in enumerate(self.path(row, level, node)))


@dataclass(frozen=True)
class Layer:
    """An attention layer over random rows."""

    dtype: DType
    head_dim: int
    group: int
    window: int | None = None
    first_slot: int = 0
    norms: bool = False

    @property
    def num_heads(self) -> int:
        return self.group * NUM_KV_HEADS

    @property
    def cols(self) -> int:
        return (self.num_heads + 2 * NUM_KV_HEADS) * self.head_dim

    def attrs(self, first_node: int) -> dict[str, Any]:
        found = {
            "head_dim": self.head_dim,
            "num_heads": self.num_heads,
            "num_kv_heads": NUM_KV_HEADS,
            "eps": 1e-6 * self.norms,
            "scale": self.head_dim**-0.5,
            "window": self.window,
        }
        more = {"first_node": first_node, "first_slot": self.first_slot}
        return found | {name: number for name, number in more.items() if number}


def level_attention(make: Maker, layer: Layer, tree: Levels) -> Case:
    """All levels, one after the other: each attends to what the ones before it wrote. Slots not written are NaN."""
    rows, width = len(tree.counts), tree.width
    table, steady = _weights(make, layer, tree)
    ops: list[Op] = []
    extra: list[Value] = [LEVEL_NODES, DRAFT_PREFIX]
    inputs = static_inputs(
        chains([max(count, 1) for count in tree.counts]), list(tree.prefixes), seed=make.seed
    )
    inputs["level_nodes"] = np.array(tree.counts, np.int32)
    inputs["draft_prefix"] = inputs["prefix_len"]
    for level in range(tree.num_levels):
        tokens, ancestors, depth = (
            Value(f"{name}.{level}", ("B", "W"), dtype, Role.INPUT)
            for name, dtype in (("tokens", I32), ("ancestors", I64), ("depth", I32))
        )
        extra += [tokens, ancestors, depth]
        each = [[(row, level, node) for node in range(width)] for row in range(rows)]
        inputs[tokens.name] = np.array([[tree.token(*node) for node in line] for line in each], np.int32)
        inputs[ancestors.name] = np.array([[tree.mask(*node) for node in line] for line in each], np.int64)
        inputs[depth.name] = np.full((rows, width), level, np.int32)
        place = (ancestors, depth, BLOCK_TABLE, DRAFT_PREFIX, LEVEL_NODES)
        ops += _layer_ops(layer, steady, table, tokens, place, level * width, level)
    outputs = tuple(op.out for op in ops if op.kind == "rope_attention")
    slots = [range(layer.first_slot, prefix) for prefix in tree.prefixes]
    caches = make.caches(inputs, NUM_KV_HEADS, layer.head_dim, layer.dtype, slots=slots)
    return Case(tuple(ops), outputs, make.tensors, inputs, caches, tuple(extra), width)


def path_as_chain(case: Case, layer: Layer, tree: Levels, level: int, node: int) -> Case:
    """The path to one node of a level of each sequence as the nodes of a plain pass, in a case of `level_attention`."""
    rows = len(tree.counts)
    tokens = np.zeros((rows, level + 1), np.int32)
    for row in range(rows):
        path = tree.path(row, level, node)
        tokens[row] = [tree.token(row, above, each) for above, each in enumerate(path)]
    parents = np.tile(np.arange(-1, level, dtype=np.int32), (rows, 1))
    num_nodes = np.where(np.array(tree.counts) > node, level + 1, 0).astype(np.int32)
    inputs = static_inputs(CandidateTrees(tokens, parents, num_nodes), list(tree.prefixes))
    inputs["block_table"] = case.inputs["block_table"]
    table, steady = case.ops[0].inputs[1], case.ops[1].inputs[1:5]
    place = (ANCESTORS, DEPTH, BLOCK_TABLE, PREFIX_LEN, NUM_NODES)
    ops = _layer_ops(layer, steady, table, TOKENS, place, 0, 0)
    return Case(tuple(ops), (ops[1].out,), case.weights, inputs, case.caches)


def _weights(make: Maker, layer: Layer, tree: Levels) -> tuple[Value, tuple[Value | None, ...]]:
    """The table of rows, and what each call of the layer reads behind them."""
    num_tokens = len(tree.counts) * tree.num_levels * tree.width
    table = make.weight("qkv.table", num_tokens, layer.cols)
    rope = make.rope_tables(MAX_MODEL_LEN + MAX_NODES, layer.head_dim)
    norms = [make.weight(name, layer.head_dim) if layer.norms else None for name in ("q_norm", "k_norm")]
    return table, (*rope, *norms)


def _layer_ops(
    layer: Layer,
    steady: Sequence[Value | None],
    table: Value,
    tokens: Value,
    place: tuple[Value, ...],
    first_node: int,
    level: int,
) -> list[Op]:
    """Look up the rows of `tokens`, and let them attend."""
    dim = tokens.shape[1]
    x = Value(f"qkv.{level}", ("B", dim, layer.cols), F32)
    out = Value(f"out.{level}", ("B", dim, layer.num_heads * layer.head_dim), F32)
    before, after = (
        [state(f"{side}_cache.0", NUM_KV_HEADS, layer.head_dim, layer.dtype, version) for side in "kv"]
        for version in (level, level + 1)
    )
    reads = (x, *steady, *before, *place)
    return [
        Op("embed", (x,), (tokens, table)),
        Op("rope_attention", (out, *after), reads, layer.attrs(first_node)),
    ]


def _case(label: str, layer: Layer, tree: Levels) -> KernelCase:
    make = partial(level_attention, layer=layer, tree=tree)
    return KernelCase("rope_attention", layer.dtype, f"levels-{label}", make)


def behind(tree: Levels, first_slot: int) -> Levels:
    """The same tree, of which each sequence has `first_slot` committed tokens: before them only a chain may stand."""
    least = first_slot if tree.width > 1 else 0
    return replace(tree, prefixes=tuple(max(prefix, least) for prefix in tree.prefixes))


TREES = (
    Levels((1, 1, 1, 1), (0, 63, 64, 255), width=1, num_levels=5),
    Levels((3, 0, 2, 3), (62, 100, 252, 1), width=3, num_levels=4, seed=1),
    Levels((10, 1, 0, 7), (65, 256, 3, 190), width=10, num_levels=6, seed=2),
)

LEVEL_CASES = [
    *(
        _case(f"{tree.width}-of {head_dim}x{group}", Layer(dtype, head_dim, group), tree)
        for dtype in DTYPES
        for head_dim, group in zip(HEAD_DIMS, (1, 3, 8, 3, 1, 8, 3), strict=True)
        for tree in TREES[head_dim % 3 :][:2]
    ),
    *(
        _case(f"{tree.width}-window-{window}", Layer(dtype, 16, 3, window=window), tree)
        for dtype in (DType.FLOAT32, DType.BFLOAT16)
        for window in (1, 2, 5, 63, 64, 65, 256)
        for tree in TREES
    ),
    *(
        _case(
            f"{tree.width}-from {first_slot}-window-{window}",
            Layer(dtype, 24, 3, window, first_slot, True),
            behind(tree, first_slot),
        )
        for dtype in DTYPES
        for window in (None, 70)
        for first_slot in (1, 63, 64, 70)
        for tree in TREES
    ),
]
