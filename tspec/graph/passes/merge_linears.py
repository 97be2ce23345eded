"""Graph pass: one product for the linears that read the same rows (q, k and v; gate and up)."""

from dataclasses import replace
from itertools import groupby

from tspec.graph.ir import Graph, Op, Role, Value
from tspec.graph.rewrite import Rewriter
from tspec.graph.signature import operand, optional_operand


def merge_linears(graph: Graph) -> Graph:
    """Rewrite `q = linear(x, a); k = linear(x, b)` into `qk = linear(x, ab); q, k = split(qk)`.

    The joined weight lists its checkpoint tensors in `parts`. Saves a launch and a read of x a linear.
    Skips linears of which some but not all have a bias, and weights of different dtypes.
    """
    edit = Rewriter(graph)
    for _, run in groupby(graph.ops, key=lambda op: op.inputs[0] if op.kind == "linear" else None):
        linears = list(run)
        if linears[0].kind == "linear" and len(linears) > 1 and _agree(linears):
            edit.replace(linears, _merge(linears), at=linears[0])
    return edit.done()


def _agree(linears: list[Op]) -> bool:
    dtypes = {operand(op, "weight").dtype for op in linears}
    has_bias = {optional_operand(op, "bias") is not None for op in linears}
    return len(dtypes) == len(has_bias) == 1


def _merge(linears: list[Op]) -> list[Op]:
    outs = tuple(op.out for op in linears)
    sizes = tuple(int(out.shape[-1]) for out in outs)
    x = operand(linears[0], "x")
    matrix = _join([operand(op, "weight") for op in linears])
    biases = [bias for op in linears if (bias := optional_operand(op, "bias")) is not None]
    name = join_names([out.name for out in outs])
    joined = replace(outs[0], name=name, shape=(*outs[0].shape[:-1], sum(sizes)))
    return [
        Op("linear", (joined,), (x, matrix, _join(biases) if biases else None)),
        Op("split", outs, (joined,), {"sizes": sizes}),
    ]


def _join(weights: list[Value]) -> Value:
    """One weight of several, below each other."""
    length = sum(int(each.shape[0]) for each in weights)
    parts = tuple(part for each in weights for part in each.parts)
    shape = (length, *weights[0].shape[1:])
    return Value(join_names([each.name for each in weights]), shape, weights[0].dtype, Role.WEIGHT, parts)


def join_names(names: list[str]) -> str:
    """`a.q_proj.weight`, `a.k_proj.weight` -> `a.qk_proj.weight`; `a.gate`, `a.up` -> `a.gate_up`."""
    words = []
    for column in zip(*(name.split(".") for name in names), strict=True):
        stems = [word.removesuffix("_proj") for word in column]
        suffix = column[0][len(stems[0]) :]
        joint = "" if max(map(len, stems)) == 1 else "_"
        words.append(column[0] if len(set(column)) == 1 else joint.join(stems) + suffix)
    return ".".join(words)
