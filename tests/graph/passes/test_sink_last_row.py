"""A prefill computes only the rows it needs, and means the same.

Run: pytest tests/graph/passes/test_sink_last_row.py
"""

from dataclasses import replace

import pytest
from support.graphs import assert_same_meaning, ops_text, tiny_config

from tspec.core.dtypes import DType
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.check import check
from tspec.graph.passes import fuse
from tspec.graph.passes.sink_last_row import sink_last_row
from tspec.models import LAYERS, build_graph


@pytest.mark.parametrize("architecture", LAYERS)
@pytest.mark.parametrize("num_layers", [1, 3])
def test_sinking_keeps_the_meaning(architecture, num_layers):
    plain = build_graph(tiny_config(architecture, num_layers=num_layers), head="last", with_logits=True)
    assert_same_meaning(plain, check(sink_last_row(plain)))


@pytest.mark.parametrize("with_logits", [False, True])
def test_sinking_into_a_fused_graph_keeps_the_meaning(with_logits):
    plain = build_graph(tiny_config(), head="last", with_logits=with_logits)
    assert_same_meaning(plain, fuse(plain))


def test_it_sinks_to_the_attention_and_the_residual_of_the_last_layer():
    sunk = sink_last_row(build_graph(tiny_config(), head="last"))
    lines = ops_text(sunk).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("layers.1.attention:"))
    layer = "model.layers.1"
    assert lines[start + 1 :] == [
        "layers.1.attention.last: f32[B, 1, 32] = last_row(layers.1.attention, num_nodes)",
        f"layers.1.o: f32[B, 1, 24] = linear(layers.1.attention.last, {layer}.self_attn.o_proj.weight, -)",
        "layers.0.mlp_residual.last: f32[B, 1, 24] = last_row(layers.0.mlp_residual, num_nodes)",
        "layers.1.attn_residual: f32[B, 1, 24] = add(layers.1.o, layers.0.mlp_residual.last)",
        f"layers.1.mlp_norm: f32[B, 1, 24] = rms_norm(layers.1.attn_residual, "
        f"{layer}.post_attention_layernorm.weight) eps=1e-05",
        f"layers.1.gate: f32[B, 1, 20] = linear(layers.1.mlp_norm, {layer}.mlp.gate_proj.weight, -)",
        f"layers.1.up: f32[B, 1, 20] = linear(layers.1.mlp_norm, {layer}.mlp.up_proj.weight, -)",
        "layers.1.act: f32[B, 1, 20] = silu_mul(layers.1.gate, layers.1.up)",
        f"layers.1.down: f32[B, 1, 24] = linear(layers.1.act, {layer}.mlp.down_proj.weight, -)",
        "layers.1.mlp_residual: f32[B, 1, 24] = add(layers.1.down, layers.1.attn_residual)",
        "norm: f32[B, 1, 24] = rms_norm(layers.1.mlp_residual, model.norm.weight) eps=1e-05",
        "logits: f32[B, 1, 40] = head_logits(norm, lm_head.weight, -)",
        "node_tokens: i32[B, 1] = sample(logits, temperature, seed, prefix_len, depth, num_nodes, -, -)",
        "return node_tokens",
    ]
    assert sink_last_row(sunk) == sunk


def test_a_value_whose_other_rows_are_read_keeps_them_all():
    plain = build_graph(tiny_config(), head="last")
    wide = next(op.out for op in plain.ops if op.out.name == "norm")
    graph = replace(plain, outputs=(*plain.outputs, wide))
    sunk = check(sink_last_row(graph))
    assert_same_meaning(graph, sunk)
    assert "norm.last: f32[B, 1, 24] = last_row(norm, num_nodes)" in ops_text(sunk)


def test_two_last_rows_of_one_value_stay_correct():
    build = GraphBuilder("g")
    x = build.embed("x", weight("table", (40, 4), DType.FLOAT32))
    y = build.add("y", x, x)
    graph = build.build([build.last_row("one", y), build.last_row("two", y)])
    assert_same_meaning(graph, check(sink_last_row(graph)))


def test_a_graph_in_which_all_nodes_reach_the_head_is_left_alone():
    graph = build_graph(tiny_config())
    assert sink_last_row(graph) == graph
