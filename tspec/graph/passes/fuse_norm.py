"""Graph pass: make an RMSNorm the prologue of the product that reads it."""

from tspec.graph.ir import Graph, Op
from tspec.graph.rewrite import Rewriter
from tspec.graph.signature import operand

PRODUCTS = ("linear", "linear_silu_mul", "head_logits", "head_sample")


def fuse_norm(graph: Graph) -> Graph:
    """Rewrite `linear(rms_norm(x, g), w)` into `norm_linear(x, g, w)`, and the like for the other products.

    Saves a launch, and the normalised rows once through memory.
    Skips a norm that several ops read: each would have to normalise again.
    """
    edit = Rewriter(graph)
    for norm in graph.each("rms_norm"):
        readers = edit.readers(norm.out)
        if len(readers) == 1 and readers[0].kind in PRODUCTS and edit.is_private([norm.out], readers):
            product = readers[0]
            inputs = (operand(norm, "x"), operand(norm, "weight"), *product.inputs[1:])
            edit.replace([norm, product], Op(f"norm_{product.kind}", product.outputs, inputs, norm.attrs))
    return edit.done()
