"""The gated activation becomes the epilogue of the joined gate and up linear, and means the same.

Run: pytest tests/graph/passes/test_fuse_silu_mul.py
"""

from dataclasses import replace

import pytest
from support.graphs import assert_same_meaning, ops_text, tiny_config

from tspec.graph.passes.fuse_silu_mul import fuse_silu_mul
from tspec.graph.passes.merge_linears import merge_linears
from tspec.models import build_graph


@pytest.mark.parametrize("has_mlp_bias", [False, True])
def test_fusing_keeps_the_meaning(has_mlp_bias):
    merged = merge_linears(build_graph(tiny_config(has_mlp_bias=has_mlp_bias), with_logits=True))
    fused = fuse_silu_mul(merged)
    assert len(list(fused.each("linear_silu_mul"))) == 2
    assert not list(fused.each("silu_mul"))
    assert_same_meaning(merged, fused)


def test_the_joined_linear_prints_with_its_epilogue():
    fused = fuse_silu_mul(merge_linears(build_graph(tiny_config(num_layers=1))))
    assert [line for line in ops_text(fused).splitlines() if "gate" in line] == [
        "layers.0.act: f32[B, T, 20] = "
        "linear_silu_mul(layers.0.mlp_norm, model.layers.0.mlp.gate_up_proj.weight, -)"
    ]
    assert fuse_silu_mul(fused) == fused


def test_gate_and_up_in_the_other_order_are_left_alone():
    merged = merge_linears(build_graph(tiny_config(num_layers=1)))
    old = next(merged.each("silu_mul"))
    swapped = replace(old, inputs=old.inputs[::-1])
    graph = replace(merged, ops=tuple(swapped if op is old else op for op in merged.ops))
    assert fuse_silu_mul(graph) == graph


def test_a_gate_that_is_read_elsewhere_is_left_alone():
    merged = merge_linears(build_graph(tiny_config(num_layers=1)))
    gate = next(merged.each("silu_mul")).inputs[0]
    graph = replace(merged, outputs=(*merged.outputs, gate))
    assert fuse_silu_mul(graph) == graph
