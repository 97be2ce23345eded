"""Cases of tree attention: head sizes, query heads a KV head, borders of blocks and chunks, windows."""

from collections.abc import Sequence

from support.cpu_pass import MAX_MODEL_LEN, Case
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
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.graph.builder import ANCESTORS, BLOCK_TABLE, DEPTH, NUM_NODES, PREFIX_LEN
from tspec.graph.ir import Op, Value

F32, BF16 = DType.FLOAT32, DType.BFLOAT16


def rope_attention(
    make: Maker,
    dtype: DType,
    head_dim: int,
    group: int,
    trees: CandidateTrees,
    prefixes: Sequence[int],
    window: int | None = None,
    norms: bool = False,
) -> Case:
    """Slots that a sequence has not written hold NaN: reading one shows."""
    num_kv_heads = 1 if group == 8 else 2
    num_heads = group * num_kv_heads
    source, qkv = make.rows("qkv", trees.tokens.size, (num_heads + 2 * num_kv_heads) * head_dim)
    scales = [make.weight(name, head_dim) if norms else None for name in ("q_norm", "k_norm")]
    inputs = make.inputs(numbered(trees), prefixes)
    tables = make.rope_tables(MAX_MODEL_LEN + MAX_NODES, head_dim)
    caches, written = (
        [state(f"{side}_cache.0", num_kv_heads, head_dim, dtype, version) for side in "kv"]
        for version in (0, 1)
    )
    out = Value("out", ("B", "T", num_heads * head_dim), F32)
    reads = (qkv, *tables, *scales, *caches, ANCESTORS, DEPTH, BLOCK_TABLE, PREFIX_LEN, NUM_NODES)
    attrs = {
        "head_dim": head_dim,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "eps": 1e-6 * norms,
        "scale": head_dim**-0.5,
        "window": window,
    }
    memory = make.caches(inputs, num_kv_heads, head_dim, dtype)
    op = Op("rope_attention", (out, *written), reads, attrs)
    return Case((source, op), (out,), make.tensors, inputs, memory)


ATTENTION_CASES = [
    *(
        spread(
            "rope_attention",
            rope_attention,
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
            "rope_attention",
            rope_attention,
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
            "rope_attention",
            rope_attention,
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
            "rope_attention",
            rope_attention,
            dtype,
            "ending",
            head_dim=16,
            group=3,
            trees=chains(ENDING),
            prefixes=(64, 3, 0),
        )
        for dtype in DTYPES
    ),
    *(
        spread(
            "rope_attention",
            rope_attention,
            dtype,
            f"norms-{head_dim}x{group}-{name}",
            head_dim=head_dim,
            group=group,
            trees=trees,
            prefixes=prefixes,
            norms=True,
        )
        for dtype in DTYPES
        for number, head_dim in enumerate(HEAD_DIMS)
        for group in [GROUPS[(number + 1) % 3]]
        for name, trees, prefixes in (
            ("trees", random_trees(COUNTS, number), PREFIXES[number % 3]),
            ("ending", random_trees(ENDING, number), (63, 250, 0)),
        )
    ),
]
