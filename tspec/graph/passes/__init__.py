"""Graph passes: functions Graph -> Graph that keep what a graph means. `fuse` runs them all, in order.

Every pass may be run alone and in any order, and again. The order below lets each see what it looks for. Dead
ops go last, so that a graph without a head still ends in the fused ops and the joined weights of all others.
"""

from collections.abc import Callable

from tspec.graph.check import check
from tspec.graph.ir import Graph
from tspec.graph.passes.drop_dead import drop_dead
from tspec.graph.passes.fuse_head_sample import fuse_head_sample
from tspec.graph.passes.fuse_norm import fuse_norm
from tspec.graph.passes.fuse_residual_add import fuse_residual_add
from tspec.graph.passes.fuse_rope_attention import fuse_rope_attention
from tspec.graph.passes.fuse_rope_kv_write import fuse_rope_kv_write
from tspec.graph.passes.fuse_silu_mul import fuse_silu_mul
from tspec.graph.passes.merge_linears import merge_linears
from tspec.graph.passes.sink_last_row import sink_last_row

PASSES: tuple[Callable[[Graph], Graph], ...] = (
    sink_last_row,
    merge_linears,
    fuse_rope_kv_write,
    fuse_rope_attention,
    fuse_residual_add,
    fuse_silu_mul,
    fuse_head_sample,
    fuse_norm,
    drop_dead,
)


def fuse(graph: Graph) -> Graph:
    """Return the graph after all passes, each result checked.

    Errors: ShapeError naming the pass that broke the graph.
    """
    check(graph)
    for graph_pass in PASSES:
        graph = check(graph_pass(graph), after=graph_pass.__name__)
    return graph
