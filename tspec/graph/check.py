"""Holds a graph against the rules of its form: defined once, before use; every op's own check."""

from tspec.core.errors import ShapeError
from tspec.graph.ir import Graph, Role, Value
from tspec.graph.ops import check_op


def check(graph: Graph, *, after: str | None = None) -> Graph:
    """Return `graph` if it is well formed. `after` names the graph pass that made it, for the message.

    Errors: ShapeError for a value that is read before it is defined, defined twice, used under two types, or
    never defined; for a KV cache version that is no longer current; for an op that its own check refuses.
    """
    where = graph.name if after is None else f"{graph.name} after {after}"
    known = {value.name: value for value in graph.inputs}
    versions: dict[str, str] = {}
    for op in graph.ops:
        for value in op.reads:
            _check_read(value, known, versions, f"{op.kind} {op.out.name} in {where}")
        check_op(op)
        for value in op.outputs:
            if value.name in known:
                raise _broken(f"value {value.name} in {where}", "a second definition", "one")
            known[value.name] = value
            if value.role is Role.STATE:
                versions[value.base] = value.name
    for value in graph.outputs:
        if known.get(value.name) != value:
            raise _broken(f"output {value.name} of {where}", "no definition", "an op that defines it")
    return graph


def _check_read(value: Value, known: dict[str, Value], versions: dict[str, str], reader: str) -> None:
    """A weight, and a KV cache's first version, need no definition, but keep one type all over the graph."""
    if value.role is Role.WEIGHT:
        known.setdefault(value.name, value)
    if value.role is Role.STATE:
        if versions.setdefault(value.base, value.base) != value.name:
            raise _broken(f"operand {value.name} of {reader}", "an overwritten version", versions[value.base])
        known.setdefault(value.name, value)
    if value.name not in known:
        raise _broken(f"operand {value.name} of {reader}", "no definition before it", "one")
    if known[value.name] != value:
        raise _broken(f"operand {value.name} of {reader}", value, known[value.name])


def _broken(what: str, got: object, need: object) -> ShapeError:
    return ShapeError(what, got=got, need=need, fix="Fix the builder or the graph pass.")
