"""A norm becomes the prologue of the product that reads it, and means the same.

Run: pytest tests/graph/passes/test_fuse_norm.py
"""

from support.graphs import assert_same_meaning, ops_text, tiny_config

from tspec.core.dtypes import DType
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.passes.fuse_head_sample import fuse_head_sample
from tspec.graph.passes.fuse_norm import fuse_norm
from tspec.graph.passes.fuse_silu_mul import fuse_silu_mul
from tspec.graph.passes.merge_linears import merge_linears
from tspec.models import build_graph


def test_fusing_keeps_the_meaning():
    merged = fuse_head_sample(fuse_silu_mul(merge_linears(build_graph(tiny_config()))))
    fused = fuse_norm(merged)
    kinds = [op.kind for op in fused.ops if op.kind.startswith("norm_")]
    assert kinds == ["norm_linear", "norm_linear_silu_mul"] * 2 + ["norm_head_sample"]
    assert not list(fused.each("rms_norm"))
    assert_same_meaning(merged, fused)


def test_the_product_prints_with_its_norm():
    fused = fuse_norm(merge_linears(build_graph(tiny_config(num_layers=1))))
    assert [line for line in ops_text(fused).splitlines() if line.startswith("layers.0.qkv")] == [
        "layers.0.qkv: f32[B, T, 64] = norm_linear(embed, model.layers.0.input_layernorm.weight, "
        "model.layers.0.self_attn.qkv_proj.weight, -) eps=1e-05"
    ]
    assert fuse_norm(fused) == fused


def test_a_norm_of_several_readers_is_left_alone():
    build = GraphBuilder("g")
    x = build.embed("x", weight("table", (40, 4), DType.FLOAT32))
    normed = build.rms_norm("normed", x, weight("scale", (4,), DType.FLOAT32), 1e-5)
    first = build.linear("first", normed, weight("w", (4, 4), DType.FLOAT32))
    graph = build.build([first, build.add("second", normed, x)])
    assert fuse_norm(graph) == graph
