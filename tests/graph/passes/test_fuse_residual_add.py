"""A residual add becomes the epilogue of the linear before it, and means the same.

Run: pytest tests/graph/passes/test_fuse_residual_add.py
"""

from dataclasses import replace

from support.graphs import assert_same_meaning, ops_text, tiny_config

from tspec.core.dtypes import DType
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.passes.fuse_residual_add import fuse_residual_add
from tspec.models import build_graph


def small_graph(swapped=False):
    build = GraphBuilder("g")
    x = build.embed("x", weight("table", (40, 4), DType.FLOAT32))
    out = build.linear("out", x, weight("w", (4, 4), DType.FLOAT32), weight("b", (4,), DType.FLOAT32))
    return build.build([build.add("h", x, out) if swapped else build.add("h", out, x)])


def test_fusing_keeps_the_meaning():
    plain = build_graph(tiny_config(), with_logits=True)
    fused = fuse_residual_add(plain)
    assert len(list(fused.each("linear_add"))) == 4
    assert not list(fused.each("add"))
    assert_same_meaning(plain, fused)


def test_the_sum_takes_the_place_of_the_linear():
    fused = fuse_residual_add(small_graph())
    assert (
        ops_text(fused)
        == """\
x: f32[B, T, 4] = embed(tokens, table)
h: f32[B, T, 4] = linear_add(x, w, b, x)
return h"""
    )
    assert fuse_residual_add(fused) == fused
    assert_same_meaning(small_graph(), fused)


def test_a_linear_that_is_read_elsewhere_is_left_alone():
    graph = small_graph()
    linear = next(graph.each("linear"))
    graph = replace(graph, outputs=(*graph.outputs, linear.out))
    assert fuse_residual_add(graph) == graph


def test_a_linear_as_the_residual_is_left_alone():
    graph = small_graph(swapped=True)
    assert fuse_residual_add(graph) == graph
