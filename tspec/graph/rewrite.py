"""Edits a graph: asks who makes and who reads a value, replaces ops. What a graph pass is written with."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tspec.graph.ir import Graph, Op, Value


class Rewriter:
    """Collects replacements of ops in a graph; `done` applies them. Ops already replaced are unseen."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._producers = {value.name: op for op in graph.ops for value in op.outputs}
        self._readers: dict[str, list[Op]] = {}
        for op in graph.ops:
            for value in op.reads:
                self._readers.setdefault(value.name, []).append(op)
        self._order = {_key(op): place for place, op in enumerate(graph.ops)}
        self._replaced: dict[str, tuple[Op, ...]] = {}

    def producer(self, value: Value | None, kind: str) -> Op | None:
        """Return the op of `kind` that makes `value`, or None."""
        op = self._producers.get(value.name) if value is not None else None
        return op if op is not None and op.kind == kind and _key(op) not in self._replaced else None

    def readers(self, value: Value, kind: str | None = None) -> list[Op]:
        """Return the ops that read `value`, in order; with `kind` only those of that kind."""
        return [op for op in self._readers.get(value.name, []) if kind is None or op.kind == kind]

    def is_private(self, values: Iterable[Value], ops: Sequence[Op]) -> bool:
        """Say whether `ops` alone read `values`, and none of them is an output of the graph."""
        keys = {_key(op) for op in ops}
        outputs = {value.name for value in self.graph.outputs}
        return all(
            value.name not in outputs and all(_key(op) in keys for op in self.readers(value))
            for value in values
        )

    def replace(self, old: Sequence[Op], new: Op | Sequence[Op], *, at: Op | None = None) -> None:
        """Put `new` where `at` stands, by default the last of `old`, and take all of `old` away."""
        place = at if at is not None else max(old, key=lambda op: self._order[_key(op)])
        for op in old:
            self._replaced[_key(op)] = ()
        self._replaced[_key(place)] = (new,) if isinstance(new, Op) else tuple(new)

    def done(self) -> Graph:
        """Return the edited graph."""
        ops = (each for op in self.graph.ops for each in self._replaced.get(_key(op), (op,)))
        return replace(self.graph, ops=tuple(ops))


def _key(op: Op) -> str:
    """An op's identity: the name of its first output, which no other op defines."""
    return op.out.name
