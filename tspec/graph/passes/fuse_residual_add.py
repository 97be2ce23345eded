"""Graph pass: make a residual add the epilogue of the linear before it."""

from tspec.graph.ir import Graph, Op
from tspec.graph.rewrite import Rewriter
from tspec.graph.signature import operand


def fuse_residual_add(graph: Graph) -> Graph:
    """Rewrite `add(linear(x, w), r)` into `linear_add(x, w, r)`.

    Saves a launch, and the linear's result once through memory.
    Skips a linear whose result is read elsewhere too.
    """
    edit = Rewriter(graph)
    for add in graph.each("add"):
        linear = edit.producer(operand(add, "a"), "linear")
        if linear is not None and edit.is_private([linear.out], [add]):
            edit.replace([linear, add], Op("linear_add", add.outputs, (*linear.inputs, operand(add, "b"))))
    return edit.done()
