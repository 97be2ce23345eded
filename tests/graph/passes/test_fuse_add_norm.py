"""A residual add and the norm behind it become one op, and mean the same.

Run: pytest tests/graph/passes/test_fuse_add_norm.py
"""

from support.graphs import assert_same_meaning, ops_text, tiny_config

from tspec.core.dtypes import DType
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.passes.fuse_add_norm import fuse_add_norm
from tspec.models import build_graph


def test_fusing_keeps_the_meaning():
    plain = build_graph(tiny_config(), with_logits=True)
    fused = fuse_add_norm(plain)
    assert len(list(fused.each("add_rms_norm"))) == 4
    assert len(list(fused.each("rms_norm"))) == 1  # of the embedding, which nothing is added to
    assert_same_meaning(plain, fused)


def test_the_sum_stays_a_result_for_all_its_readers():
    build = GraphBuilder("g")
    scale = weight("scale", (4,), DType.FLOAT32)
    x = build.embed("x", weight("table", (40, 4), DType.FLOAT32))
    h = build.add("h", x, x)
    early = build.add("early", h, x)
    first = build.rms_norm("first", h, scale, 1e-5)
    second = build.rms_norm("second", h, scale, 1e-5)
    graph = build.build([early, first, second])
    fused = fuse_add_norm(graph)
    assert (
        ops_text(fused)
        == """\
x: f32[B, T, 4] = embed(tokens, table)
first: f32[B, T, 4], h: f32[B, T, 4] = add_rms_norm(x, x, scale) eps=1e-05
early: f32[B, T, 4] = add(h, x)
second: f32[B, T, 4] = rms_norm(h, scale) eps=1e-05
return early, first, second"""
    )
    assert fuse_add_norm(fused) == fused
    assert_same_meaning(graph, fused)
