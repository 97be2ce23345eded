"""Cases of the kernels that stream weights: linear, gate and up with SiLU, and the head with argmax."""

from functools import partial

from support.cpu_pass import Case
from support.kernel_case import DTYPES, ENDING, RAGGED, KernelCase, Maker, chains

from tspec.core.dtypes import DType
from tspec.graph.builder import NUM_NODES
from tspec.graph.ir import Op, Value

F32, I32 = DType.FLOAT32, DType.INT32


def linear(
    make: Maker,
    dtype: DType,
    n: int,
    k: int,
    counts: tuple[int, ...],
    bias: bool = False,
    kind: str = "linear",
) -> Case:
    """`linear`, or `linear_silu_mul` with twice the rows of weights; each output has the size of 1."""
    trees = chains(counts)
    source, x = make.rows("x", trees.tokens.size, k)
    weights = n if kind == "linear" else 2 * n
    matrix = make.weight("matrix", weights, k, dtype=dtype, scale=k**-0.5)
    shift = make.weight("bias", weights) if bias else None
    out = Value("out", ("B", "T", n), F32)
    return Case((source, Op(kind, (out,), (x, matrix, shift))), (out,), make.tensors, make.inputs(trees), {})


def head_argmax(
    make: Maker,
    dtype: DType,
    vocab: int,
    k: int,
    counts: tuple[int, ...],
    bias: bool = False,
    last: bool = False,
) -> Case:
    """All in small whole numbers, so that logits are exact and many are equal; and a row of NaN."""
    trees = chains(counts)
    source, x = make.rows("x", trees.tokens.size, k)
    make.tensors["x.table"].round_()[1::4, 0] = float("nan")
    ops = [source]
    if last:
        cut = Value("x.last", ("B", 1, k), F32)
        ops.append(Op("last_row", (cut,), (x, NUM_NODES)))
        x = cut
    matrix = make.weight("matrix", vocab, k, dtype=dtype)
    shift = make.weight("bias", vocab) if bias else None
    for name in {"matrix", "bias"} & set(make.tensors):
        make.tensors[name].round_()
    out = Value("token", x.shape[:-1], I32)
    return Case(
        (*ops, Op("head_argmax", (out,), (x, matrix, shift))), (out,), make.tensors, make.inputs(trees), {}
    )


SIZES = ((1, 2), (47, 6), (48, 40), (49, 8), (97, 30), (131, 200))
"""Outputs and inner size: below, at and above a panel of either vector width."""

PRODUCT_CASES = [
    *(
        KernelCase(
            kind,
            dtype,
            f"{n}x{k}-{counts}{'-bias' * bias}",
            partial(linear, dtype=dtype, n=n, k=k, counts=counts, bias=bias, kind=kind),
        )
        for kind in ("linear", "linear_silu_mul")
        for dtype in DTYPES
        for n, k in SIZES
        for counts, bias in ((RAGGED, False), (ENDING, True))
    ),
    *(
        KernelCase(
            kind, dtype, f"{rows} rows", partial(linear, dtype=dtype, n=70, k=24, counts=(rows,), kind=kind)
        )
        for kind in ("linear", "linear_silu_mul")
        for dtype in DTYPES
        for rows in (*range(1, 18), 40)
    ),
    *(
        KernelCase(
            "head_argmax",
            dtype,
            f"{vocab}x{k}-{counts}{'-bias' * bias}{'-last' * last}",
            partial(head_argmax, dtype=dtype, vocab=vocab, k=k, counts=counts, bias=bias, last=last),
        )
        for dtype in DTYPES
        for vocab, k in ((1, 4), (97, 6), (131, 8), (700, 4))
        for counts, bias in ((RAGGED, False), (ENDING, True), ((40,), False))
        for last in (False, True)
    ),
]
