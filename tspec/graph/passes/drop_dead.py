"""Graph pass: drop the ops whose results nobody needs."""

from dataclasses import replace

from tspec.graph.ir import Graph, Op, Role


def drop_dead(graph: Graph) -> Graph:
    """Keep the ops that an output of the graph depends on, and those that write a KV cache."""
    needed = {value.name for value in graph.outputs}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if any(value.name in needed or value.role is Role.STATE for value in op.outputs):
            needed |= {value.name for value in op.reads}
            kept.append(op)
    return replace(graph, ops=tuple(reversed(kept)))
