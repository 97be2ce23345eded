"""Graph pass: join the rotation and KV write of a layer with the attention that reads them."""

from tspec.graph.ir import Graph, Op
from tspec.graph.rewrite import Rewriter
from tspec.graph.signature import operand


def fuse_rope_attention(graph: Graph) -> Graph:
    """Rewrite `q, k, v = rope_kv_write(qkv, …); attention(q, k, v, …)` into `rope_attention(qkv, …)`.

    Saves a launch, q through memory, and the wait until the keys of all sequences are written.
    Skips attention over other caches, and queries that another op reads.
    """
    edit = Rewriter(graph)
    for attention in graph.each("attention"):
        rope = edit.producer(operand(attention, "q"), "rope_kv_write")
        if (
            rope is None
            or attention.inputs[:3] != rope.outputs
            or not edit.is_private([rope.out], [attention])
        ):
            continue
        *start, depth, block_table, prefix_len, num_nodes = rope.inputs
        inputs = (*start, operand(attention, "ancestors"), depth, block_table, prefix_len, num_nodes)
        more = ("scale", "window", "first_slot")
        attrs = rope.attrs | {name: attention.attrs[name] for name in more if name in attention.attrs}
        outputs = (attention.out, *rope.outputs[1:])
        edit.replace([rope, attention], Op("rope_attention", outputs, inputs, attrs))
    return edit.done()
