"""Graph pass: pick each row's best token inside the head, so that logits are never written."""

from tspec.graph.ir import Graph, Op
from tspec.graph.rewrite import Rewriter
from tspec.graph.signature import operand


def fuse_head_argmax(graph: Graph) -> Graph:
    """Rewrite `argmax(linear(x, w))` into `head_argmax(x, w)`.

    Saves a launch, and writing and reading [rows, vocabulary].
    Skips logits that another op reads or that are an output of the graph.
    """
    edit = Rewriter(graph)
    for argmax in graph.each("argmax"):
        linear = edit.producer(operand(argmax, "logits"), "linear")
        if linear is not None and edit.is_private([linear.out], [argmax]):
            edit.replace([linear, argmax], Op("head_argmax", argmax.outputs, linear.inputs))
    return edit.done()
