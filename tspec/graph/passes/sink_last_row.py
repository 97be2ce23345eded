"""Graph pass: take the last row as early as possible, so that a prefill computes only the rows it needs."""

from dataclasses import replace

from tspec.graph.ir import Graph, Op, Role, Value
from tspec.graph.ops import OPS
from tspec.graph.static_inputs import NUM_NODES


def sink_last_row(graph: Graph) -> Graph:
    """Move each `last_row` up through the row-wise ops whose results are needed in the last row only.

    Stops below an op that mixes rows (attention), and below a value whose other rows are needed too.
    Saves all rows but one of the head, the final norm, and the last layer's output projection and MLP.
    """
    narrow = _find_narrow(graph)
    one_row: dict[str, Value] = {}
    taken = {op.reads[0].name: op.out for op in graph.each("last_row") if op.reads[0].name in narrow}
    ops: list[Op] = []
    for op in graph.ops:
        if op.out.name in narrow:
            inputs = tuple(_take_row(value, one_row, ops) for value in op.inputs)
            outputs = tuple(taken.get(value.name, _cut(value)) for value in op.outputs)
            one_row |= {value.name: cut for value, cut in zip(op.outputs, outputs, strict=True)}
            ops.append(replace(op, inputs=inputs, outputs=outputs))
        elif op.out not in taken.values():
            ops.append(op)
    return replace(graph, ops=tuple(ops))


def _find_narrow(graph: Graph) -> set[str]:
    """Return the names of the values that row-wise ops make and of which only the last row is needed."""
    all_rows = {value.name for value in graph.outputs}
    last_row: set[str] = set()
    narrow: set[str] = set()
    for op in reversed(graph.ops):
        made = {value.name for value in op.outputs}
        read = {value.name for value in op.reads if value.role is Role.TEMP}
        if op.kind == "last_row":
            all_rows |= read & last_row  # a second reader keeps its own op
            last_row |= read
        elif OPS[op.kind].is_row_wise and made & last_row and not made & all_rows:
            narrow |= made
            last_row |= read
        else:
            all_rows |= read
    return narrow


def _take_row(value: Value | None, one_row: dict[str, Value], ops: list[Op]) -> Value | None:
    """Return the last row of an operand that has rows, with a new op where nothing makes it yet."""
    if value is None or value.role is not Role.TEMP:
        return value
    if value.name not in one_row:
        one_row[value.name] = replace(_cut(value), name=f"{value.name}.last")
        ops.append(Op("last_row", (one_row[value.name],), (value, NUM_NODES)))
    return one_row[value.name]


def _cut(value: Value) -> Value:
    return replace(value, shape=("B", 1, *value.shape[2:]))
