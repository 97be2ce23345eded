"""Runs a graph op by op with given callables: the meaning that graph passes keep. Knows no tensors."""

from collections.abc import Callable, Mapping
from typing import Any

from tspec.graph.ir import Graph, Role

Reference = Callable[..., tuple[Any, ...]]


def evaluate(graph: Graph, values: Mapping[str, Any], references: Mapping[str, Reference]) -> dict[str, Any]:
    """Return the graph's outputs by name, and each KV cache as it is after the pass by its base name.

    values      a tensor for each input, weight and KV cache that the graph reads
    references  for each kind a callable (attrs, *inputs) -> outputs, which changes none of its inputs

    Errors: KeyError for a value or a reference that is missing.
    """
    known = dict(values)
    states = {}
    for op in graph.ops:
        inputs = [None if value is None else known[value.name] for value in op.inputs]
        results = references[op.kind](op.attrs, *inputs)
        for value, result in zip(op.outputs, results, strict=True):
            known[value.name] = result
            if value.role is Role.STATE:
                states[value.base] = result
    return {value.name: known[value.name] for value in graph.outputs} | states
