"""Rotation and KV write become one op over the joined q/k/v rows, and mean the same.

Run: pytest tests/graph/passes/test_fuse_rope_kv_write.py
"""

from dataclasses import replace

import pytest
from support.graphs import assert_same_meaning, ops_text, tiny_config

from tspec.graph.check import check
from tspec.graph.passes.fuse_rope_kv_write import fuse_rope_kv_write
from tspec.graph.passes.merge_linears import merge_linears
from tspec.models import LAYERS, build_graph


@pytest.mark.parametrize("architecture", LAYERS)
def test_fusing_keeps_the_meaning(architecture):
    merged = merge_linears(build_graph(tiny_config(architecture), with_logits=True))
    fused = check(fuse_rope_kv_write(merged))
    kinds = [op.kind for op in fused.ops]
    assert kinds.count("rope_kv_write") == 2
    assert not {"rope", "head_norm", "kv_write"} & set(kinds)
    assert_same_meaning(merged, fused)


def test_a_layer_with_head_norms_prints_as_one_op():
    config = tiny_config("qwen3", num_layers=1)
    fused = fuse_rope_kv_write(merge_linears(build_graph(config)))
    attention = "model.layers.0.self_attn"
    assert ops_text(fused).splitlines()[2:5] == [
        f"layers.0.qkv: f32[B, T, 64] = linear(layers.0.attn_norm, {attention}.qkv_proj.weight, -)",
        "layers.0.q_rope: f32[B, T, 32], k_cache.0@1, v_cache.0@1 = rope_kv_write(layers.0.qkv, "
        f"rope.cos, rope.sin, {attention}.q_norm.weight, {attention}.k_norm.weight, k_cache.0, v_cache.0, "
        "depth, block_table, prefix_len, num_nodes) eps=1e-05 head_dim=8 num_heads=4 num_kv_heads=2",
        "layers.0.attention: f32[B, T, 32] = attention(layers.0.q_rope, k_cache.0@1, v_cache.0@1, ancestors, "
        "prefix_len, num_nodes, block_table) head_dim=8 num_kv_heads=2 scale=0.353553 window=none",
    ]
    assert fuse_rope_kv_write(fused) == fused


def test_a_layer_without_head_norms_leaves_them_out():
    fused = fuse_rope_kv_write(merge_linears(build_graph(tiny_config())))
    op = next(fused.each("rope_kv_write"))
    assert op.inputs[3:5] == (None, None)
    assert op.attrs["eps"] == 0.0


def test_projections_that_are_not_joined_are_left_alone():
    plain = build_graph(tiny_config())
    assert fuse_rope_kv_write(plain) == plain


def test_keys_that_are_read_elsewhere_are_left_alone():
    merged = merge_linears(build_graph(tiny_config(num_layers=1)))
    k_rope = next(merged.each("kv_write")).inputs[0]
    graph = replace(merged, outputs=(*merged.outputs, k_rope))
    assert fuse_rope_kv_write(graph) == graph
