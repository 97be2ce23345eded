"""Cases of tree attention: head sizes, query heads a KV head, borders of blocks and chunks, windows."""

from collections.abc import Sequence

from support.cpu_pass import Case
from support.kernel_case import (
    COUNTS,
    DTYPES,
    ENDING,
    GROUPS,
    HEAD_DIMS,
    PREFIXES,
    Maker,
    chains,
    numbered,
    random_trees,
    spread,
    state,
)

from tspec.core.dtypes import DType
from tspec.core.tree import CandidateTrees
from tspec.graph.builder import ANCESTORS, BLOCK_TABLE, NUM_NODES, PREFIX_LEN
from tspec.graph.ir import Op, Value

F32, BF16 = DType.FLOAT32, DType.BFLOAT16


def attention(
    make: Maker,
    dtype: DType,
    head_dim: int,
    group: int,
    trees: CandidateTrees,
    prefixes: Sequence[int],
    window: int | None = None,
) -> Case:
    """Slots that a sequence has not written hold NaN: reading one shows."""
    num_kv_heads = 1 if group == 8 else 2
    source, q = make.rows("q", trees.tokens.size, group * num_kv_heads * head_dim)
    inputs = make.inputs(numbered(trees), prefixes)
    caches = [state(f"{side}_cache.0", num_kv_heads, head_dim, dtype) for side in "kv"]
    out = Value("out", q.shape, F32)
    attrs = {"head_dim": head_dim, "num_kv_heads": num_kv_heads, "scale": head_dim**-0.5, "window": window}
    op = Op("attention", (out,), (q, *caches, ANCESTORS, PREFIX_LEN, NUM_NODES, BLOCK_TABLE), attrs)
    memory = make.caches(inputs, num_kv_heads, head_dim, dtype)
    return Case((source, op), (out,), make.tensors, inputs, memory)


ATTENTION_CASES = [
    *(
        spread(
            "attention",
            attention,
            dtype,
            f"{head_dim}x{group}-after-{prefixes[0]}",
            head_dim=head_dim,
            group=group,
            trees=random_trees(COUNTS, number),
            prefixes=prefixes,
        )
        for dtype in DTYPES
        for number, head_dim in enumerate(HEAD_DIMS)
        for turn, prefixes in enumerate(PREFIXES)
        for group in [GROUPS[(number + turn) % 3]]
    ),
    *(
        spread(
            "attention",
            attention,
            dtype,
            f"window-{window}-{head_dim}x{group}-after-{prefixes[0]}",
            head_dim=head_dim,
            group=group,
            trees=random_trees(COUNTS, window),
            prefixes=prefixes,
            window=window,
        )
        for dtype in DTYPES
        for window in (1, 2, 9, 63, 64, 65, 100, 256, 1000)
        for (head_dim, group), prefixes in zip(((16, 3), (24, 8), (56, 1)), PREFIXES, strict=True)
    ),
    *(
        spread(
            "attention",
            attention,
            dtype,
            f"{nodes} nodes",
            head_dim=24,
            group=3,
            trees=random_trees((nodes,), nodes),
            prefixes=(100,),
        )
        for dtype in (F32, BF16)
        for nodes in (*range(1, 18), 40, 63, 64)
    ),
    *(
        spread(
            "attention",
            attention,
            dtype,
            "ending",
            head_dim=16,
            group=3,
            trees=chains(ENDING),
            prefixes=(64, 3, 0),
        )
        for dtype in DTYPES
    ),
]
