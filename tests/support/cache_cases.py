"""Cases of acceptance and commit."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from support.cpu_pass import Case
from support.kernel_case import (
    DTYPES,
    ENDING,
    HEAD_DIMS,
    KernelCase,
    Maker,
    chains,
    numbered,
    random_trees,
    spread,
    state,
)

from tspec.core.dtypes import DType
from tspec.core.tree import CandidateTrees
from tspec.graph.builder import ANCESTORS, BLOCK_TABLE, DEPTH, NUM_NODES, PREFIX_LEN, TOKENS
from tspec.graph.ir import Op, Role, Value

F32, BF16, I32 = DType.FLOAT32, DType.BFLOAT16, DType.INT32


def accept_match(make: Maker, trees: CandidateTrees, node_tokens: np.ndarray) -> Case:
    """`node_tokens` [B, T]: the target's token after each node."""
    inputs = make.inputs(trees) | {"node_tokens": node_tokens.astype(np.int32)}
    target = Value("node_tokens", ("B", "T"), I32, Role.INPUT)
    names = (("out_tokens", ("B", "T")), ("num_out", ("B",)), ("path", ("B", "T")))
    outs = tuple(Value(name, shape, I32) for name, shape in names)
    op = Op("accept_match", outs, (target, TOKENS, ANCESTORS, DEPTH, NUM_NODES))
    return Case((op,), outs, {}, inputs, {}, extra_inputs=(target,))


def kv_commit(
    make: Maker, dtype: DType, head_dim: int, trees: CandidateTrees, prefixes: Sequence[int], layers: int = 2
) -> Case:
    """Commits the path to a random node of each tree."""
    rows, nodes = trees.tokens.shape
    path, num_out = np.full((rows, nodes), -1, np.int32), np.ones(rows, np.int32)
    choose = np.random.default_rng(make.seed)
    for row, count in enumerate(trees.num_nodes.tolist()):
        line = path_to(trees.parents[row], int(choose.integers(0, count))) if count else []
        path[row, : len(line)], num_out[row] = line, len(line) + 1
    inputs = make.inputs(numbered(trees), prefixes)
    memory = make.caches(inputs, 2, head_dim, dtype, layers)
    verdict = (Value("path", ("B", "T"), I32, Role.INPUT), Value("num_out", ("B",), I32, Role.INPUT))
    caches, written = ([state(name, 2, head_dim, dtype, version) for name in memory] for version in (0, 1))
    op = Op("kv_commit", tuple(written), (*verdict, PREFIX_LEN, BLOCK_TABLE, *caches))
    return Case((op,), (), {}, inputs | {"path": path, "num_out": num_out}, memory, extra_inputs=verdict)


def path_to(parents: np.ndarray, node: int) -> list[int]:
    """The nodes below the root on the way to `node`, which is the last."""
    line: list[int] = []
    while node > 0:
        line.insert(0, node)
        node = int(parents[node])
    return line


CACHE_CASES = [
    *(
        spread(
            "kv_commit",
            kv_commit,
            dtype,
            f"{head_dim}-after-{prefixes[0]}",
            head_dim=head_dim,
            trees=random_trees(counts, number),
            prefixes=prefixes,
        )
        for dtype in DTYPES
        for number, head_dim in enumerate(HEAD_DIMS)
        for counts, prefixes in (((64, 12, 30), (40, 63, 250)), (ENDING, (63, 126, 0)))
    ),
    *(
        KernelCase(
            "accept_match",
            F32,
            label,
            partial(accept_match, trees=trees, node_tokens=np.full(trees.tokens.shape, 7)),
        )
        for label, trees in (("nothing fits", chains((6,))), ("a root alone", chains((1, 1, 0))))
    ),
]
