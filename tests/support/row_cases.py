"""Cases of the kernels that move rows: look-ups, the last row."""

from functools import partial

import numpy as np
from support.cpu_pass import Case
from support.kernel_case import DTYPES, ENDING, RAGGED, KernelCase, Maker, chains

from tspec.core.dtypes import DType
from tspec.graph.builder import NUM_NODES, TOKENS
from tspec.graph.ir import Op, Value

F32 = DType.FLOAT32


def embed(
    make: Maker, dtype: DType, vocab: int, cols: int, counts: tuple[int, ...], tied: bool = False
) -> Case:
    """Where the table is tied to a head, it lies packed in panels."""
    trees = chains(counts)
    tokens = np.random.default_rng(make.seed).integers(0, vocab, trees.tokens.shape)
    inputs = make.inputs(trees) | {"tokens": tokens.astype(np.int32)}
    table = make.weight("table", vocab, cols, dtype=dtype)
    out, logits = Value("x", ("B", "T", cols), F32), Value("logits", ("B", "T", vocab), F32)
    ops = [Op("embed", (out,), (TOKENS, table))]
    if tied:
        ops.append(Op("linear", (logits,), (out, table, None)))
    return Case(tuple(ops), (out,), make.tensors, inputs, {})


def last_row(make: Maker, cols: int, counts: tuple[int, ...]) -> Case:
    trees = chains(counts)
    source, x = make.rows("x", trees.tokens.size, cols)
    out = Value("last", ("B", 1, cols), F32)
    return Case(
        (source, Op("last_row", (out,), (x, NUM_NODES))), (out,), make.tensors, make.inputs(trees), {}
    )


ROW_CASES = [
    *(
        KernelCase(
            "embed",
            dtype,
            f"{vocab}x{cols}{'-tied' * tied}",
            partial(embed, dtype=dtype, vocab=vocab, cols=cols, counts=RAGGED, tied=tied),
        )
        for dtype in DTYPES
        for vocab, cols, tied in ((97, 24, False), (97, 24, True), (131, 40, True), (5, 2, True))
    ),
    *(
        KernelCase("last_row", F32, f"{cols}-{counts}", partial(last_row, cols=cols, counts=counts))
        for cols in (2, 16, 50)
        for counts in ((1,), (40,), RAGGED, ENDING)
    ),
]
