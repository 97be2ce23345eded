"""Graph pass: make SiLU and the product of gate and up the epilogue of their joined linear."""

from tspec.graph.ir import Graph, Op
from tspec.graph.rewrite import Rewriter
from tspec.graph.signature import operand


def fuse_silu_mul(graph: Graph) -> Graph:
    """Rewrite `gate, up = split(linear(x, w)); silu_mul(gate, up)` into `linear_silu_mul(x, w)`.

    Saves a launch or two, and the round trip of [rows, 2 * intermediate] through memory.
    Skips halves in another order or of other sizes, and values that are read elsewhere too.
    """
    edit = Rewriter(graph)
    for product in graph.each("silu_mul"):
        split = edit.producer(operand(product, "gate"), "split")
        if split is None or split.outputs != product.inputs:
            continue
        linear = edit.producer(operand(split, "x"), "linear")
        old = [op for op in (linear, split, product) if op is not None]
        if linear is not None and edit.is_private([linear.out, *split.outputs], old):
            edit.replace(old, Op("linear_silu_mul", product.outputs, linear.inputs))
    return edit.done()
