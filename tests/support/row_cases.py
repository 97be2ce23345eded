"""Cases of the kernels that work row by row: look-ups, the last row, the best token."""

from functools import partial

import numpy as np
from support.cpu_pass import Case
from support.kernel_case import DTYPES, ENDING, RAGGED, KernelCase, Maker, chains

from tspec.core.dtypes import DType
from tspec.graph.builder import NUM_NODES, TOKENS
from tspec.graph.ir import Op, Value

F32, I32 = DType.FLOAT32, DType.INT32


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


def argmax(make: Maker, vocab: int, counts: tuple[int, ...], last: bool = False) -> Case:
    """Whole numbers, so that many logits are equal and the lowest token has to win; and a row of NaN, of -inf."""
    trees = chains(counts)
    source, logits = make.rows("logits", trees.tokens.size, vocab)
    table = make.tensors["logits.table"].round_()
    table[1::3, ::2] = float("nan")
    table[2::5] = float("-inf")
    table[3::7] = float("nan")
    ops = [source]
    if last:
        cut = Value("logits.last", ("B", 1, vocab), F32)
        ops.append(Op("last_row", (cut,), (logits, NUM_NODES)))
        logits = cut
    out = Value("token", logits.shape[:-1], I32)
    return Case((*ops, Op("argmax", (out,), (logits,))), (out,), make.tensors, make.inputs(trees), {})


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
    *(
        KernelCase(
            "argmax",
            F32,
            f"{vocab}-{counts}{'-last' * last}",
            partial(argmax, vocab=vocab, counts=counts, last=last),
        )
        for vocab in (1, 16, 97, 131)
        for counts in ((17,), RAGGED, ENDING)
        for last in (False, True)
    ),
]
