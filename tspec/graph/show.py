"""Prints a graph, one op a line. The text is stable: tests compare it."""

from collections.abc import Sequence
from itertools import groupby

from tspec.graph.ir import Graph, Op, Role, Value
from tspec.graph.signature import describe

MAX_STATES = 4
"""KV caches in a row that are listed one by one; more are shown as `first .. last`."""


def show(graph: Graph) -> str:
    """Return the text of a graph: its inputs, its ops in order, what it returns."""
    lines = [f"graph {graph.name}"]
    lines += [f"  input {_typed(value)}" for value in graph.inputs]
    lines += [f"  {show_op(op)}" for op in graph.ops]
    lines.append(f"  return {', '.join(value.name for value in graph.outputs) or 'nothing'}")
    return "\n".join(lines)


def show_op(op: Op) -> str:
    """Return one line: outputs with their types, kind, operands, attributes."""
    attrs = "".join(f" {name}={_attr(value)}" for name, value in sorted(op.attrs.items()))
    return f"{_operands(op.outputs, with_types=True)} = {op.kind}({_operands(op.inputs)}){attrs}"


def _operands(values: Sequence[Value | None], *, with_types: bool = False) -> str:
    words: list[str] = []
    for is_state, run in groupby(values, key=lambda value: value is not None and value.role is Role.STATE):
        names = [
            _typed(each) if each and with_types and not is_state else each.name if each else "-"
            for each in run
        ]
        words += [f"{names[0]} .. {names[-1]}"] if is_state and len(names) > MAX_STATES else names
    return ", ".join(words)


def _typed(value: Value) -> str:
    return f"{value.name}: {describe(value.shape, value.dtype.short)}"


def _attr(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value).lower()
