"""Graph pass: choose each row's token inside the head, so that logits are never written."""

from tspec.graph.ir import Graph, Op
from tspec.graph.rewrite import Rewriter
from tspec.graph.signature import operand, optional_operand


def fuse_head_sample(graph: Graph) -> Graph:
    """Rewrite `sample(head_logits(x, w), …)` into `head_sample(x, w, …)`.

    Saves a launch, and writing and reading [rows, vocabulary].
    Skips samples from a part of the vocabulary, and logits that another op reads or that are an output of the graph.
    """
    edit = Rewriter(graph)
    for sample in graph.each("sample"):
        head = edit.producer(operand(sample, "logits"), "head_logits")
        has_kept = optional_operand(sample, "threshold") is not None
        if head is not None and not has_kept and edit.is_private([head.out], [sample]):
            inputs = (*head.inputs, *sample.inputs[1:-2])
            edit.replace([head, sample], Op("head_sample", sample.outputs, inputs))
    return edit.done()
