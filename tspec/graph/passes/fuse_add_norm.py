"""Graph pass: merge a residual add into the norm that follows it."""

from tspec.graph.ir import Graph, Op
from tspec.graph.rewrite import Rewriter
from tspec.graph.signature import operand


def fuse_add_norm(graph: Graph) -> Graph:
    """Rewrite `h = add(x, r); y = rms_norm(h, w)` into `y, h = add_rms_norm(x, r, w)`.

    Saves one launch and one read of the rows for each norm; h stays a result, for the next add.
    Skips a norm whose input is not an add, and all but the first norm of one add.
    """
    edit = Rewriter(graph)
    for norm in graph.each("rms_norm"):
        add = edit.producer(operand(norm, "x"), "add")
        if add is not None:
            inputs = (operand(add, "a"), operand(add, "b"), operand(norm, "weight"))
            fused = Op("add_rms_norm", (norm.out, add.out), inputs, norm.attrs)
            edit.replace([add, norm], fused, at=add)  # where the add stood, so that h keeps every reader
    return edit.done()
