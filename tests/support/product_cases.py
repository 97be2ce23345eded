"""Cases of the kernels that stream weights: linears, gate and up with SiLU, heads, norms before them."""

from functools import partial

from support.cpu_pass import Case
from support.kernel_case import DTYPES, ENDING, RAGGED, KernelCase, Maker, chains

from tspec.core.dtypes import DType
from tspec.graph.ir import Op, Value
from tspec.graph.static_inputs import DEPTH, NUM_NODES, PREFIX_LEN, SEED, TEMPERATURE

F32, I32 = DType.FLOAT32, DType.INT32
EPS = 1e-5
LINEARS = ("linear", "linear_add", "norm_linear", "linear_silu_mul", "norm_linear_silu_mul")
HEADS = ("head_logits", "norm_head_logits")
DRAW = (TEMPERATURE, SEED, PREFIX_LEN, DEPTH, NUM_NODES)
"""What a head that chooses tokens reads of the requests."""


def linear(
    make: Maker,
    dtype: DType,
    n: int,
    k: int,
    counts: tuple[int, ...],
    bias: bool = False,
    kind: str = "linear",
    last: bool = False,
    scale: float = 1.0,
) -> Case:
    """One of LINEARS or HEADS; each output has the size of 1. With `last`, on the last row of each sequence."""
    trees = chains(counts)
    source, x = make.rows("x", trees.tokens.size, k)
    make.tensors["x.table"] *= scale
    ops, rows = [source], {"x": x}
    if kind == "linear_add":
        residual, rows["residual"] = make.rows("residual", trees.tokens.size, n)
        ops.append(residual)
    if last:
        cut = {name: Value(f"{name}.last", ("B", 1, value.shape[-1]), F32) for name, value in rows.items()}
        ops += [Op("last_row", (cut[name],), (value, NUM_NODES)) for name, value in rows.items()]
        rows = cut
    weights = 2 * n if kind.endswith("silu_mul") else n
    matrix = make.weight("matrix", weights, k, dtype=dtype, scale=k**-0.5)
    shift = make.weight("bias", weights) if bias else None
    norm = [make.weight("norm", k)] if kind.startswith("norm_") else []
    inputs = (rows["x"], *norm, matrix, shift, *[rows[name] for name in rows if name == "residual"])
    out = Value("out", (*rows["x"].shape[:-1], n), F32)
    ops.append(Op(kind, (out,), inputs, {"eps": EPS} if norm else {}))
    return Case(tuple(ops), (out,), make.tensors, make.inputs(trees), {})


def head_sample(
    make: Maker,
    dtype: DType,
    vocab: int,
    k: int,
    counts: tuple[int, ...],
    bias: bool = False,
    last: bool = False,
    kind: str = "head_sample",
) -> Case:
    """All in small whole numbers, so that logits are exact and many are equal; and a row of NaN.

    With a norm logits are not exact, but tokens with the same weights still have equal ones, and others differ by far.
    Every other sequence is greedy.
    """
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
    norm = [make.weight("norm", k)] if kind.startswith("norm_") else []
    ops.append(Op(kind, (out,), (x, *norm, matrix, shift, *DRAW), {"eps": EPS} if norm else {}))
    temperature = [(0, 1.5, 0, 0.7)[(row + make.seed) % 4] for row in range(len(counts))]
    inputs = make.inputs(trees, [7 * row for row in range(len(counts))]) | make.draws(temperature)
    return Case(tuple(ops), (out,), make.tensors, inputs, {}, (TEMPERATURE, SEED))


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
        for kind in (*LINEARS, *HEADS)
        for dtype in DTYPES
        for n, k in SIZES
        for counts, bias in ((RAGGED, False), (ENDING, True))
    ),
    *(
        KernelCase(
            kind, dtype, f"{rows} rows", partial(linear, dtype=dtype, n=70, k=24, counts=(rows,), kind=kind)
        )
        for kind in LINEARS
        for dtype in DTYPES
        for rows in ((*range(1, 18), 40) if kind.startswith("linear") else (1, 3, 40))
    ),
    *(
        KernelCase(
            kind,
            dtype,
            f"{vocab}x{k}-{counts}{'-bias' * bias}{'-last' * last}",
            partial(
                head_sample, dtype=dtype, vocab=vocab, k=k, counts=counts, bias=bias, last=last, kind=kind
            ),
        )
        for kind in ("head_sample", "norm_head_sample")
        for dtype in DTYPES
        for vocab, k in ((1, 4), (97, 6), (131, 8), (700, 4))
        for counts, bias in ((RAGGED, False), (ENDING, True), ((40,), False))
        for last in (False, True)
    ),
    *(
        KernelCase(
            kind,
            DType.BFLOAT16,
            f"{counts}-last",
            partial(linear, dtype=DType.BFLOAT16, n=50, k=24, counts=counts, kind=kind, last=True),
        )
        for kind in LINEARS
        for counts in (RAGGED, ENDING)
    ),
    *(
        KernelCase(
            "norm_linear",
            F32,
            f"{name} numbers-{k}",
            partial(linear, dtype=F32, n=20, k=k, counts=(3,), kind="norm_linear", scale=scale),
        )
        for name, scale in (("tiny", 1e-4), ("large", 1e4))
        for k in (2, 16, 18, 100, 576)
    ),
]
