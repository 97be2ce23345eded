"""Rotation, KV write and attention become one op, and mean the same.

Run: pytest tests/graph/passes/test_fuse_rope_attention.py
"""

from dataclasses import replace

import pytest
from support.graphs import assert_same_meaning, ops_text, tiny_config

from tspec.graph.passes.fuse_rope_attention import fuse_rope_attention
from tspec.graph.passes.fuse_rope_kv_write import fuse_rope_kv_write
from tspec.graph.passes.merge_linears import merge_linears
from tspec.models import build_graph


def rotated(architecture="llama", **changes):
    plain = build_graph(tiny_config(architecture, **changes), with_logits=True)
    return fuse_rope_kv_write(merge_linears(plain))


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_fusing_keeps_the_meaning(architecture):
    before = rotated(architecture)
    fused = fuse_rope_attention(before)
    assert len(list(fused.each("rope_attention"))) == 2
    assert not list(fused.each("attention")) and not list(fused.each("rope_kv_write"))
    assert_same_meaning(before, fused)


def test_the_joined_op_prints_with_all_it_reads():
    fused = fuse_rope_attention(rotated(num_layers=1))
    assert [line for line in ops_text(fused).splitlines() if "rope_attention" in line] == [
        "layers.0.attention: f32[B, T, 32], k_cache.0@1, v_cache.0@1 = rope_attention(layers.0.qkv, rope.cos, "
        "rope.sin, -, -, k_cache.0, v_cache.0, ancestors, depth, block_table, prefix_len, num_nodes) "
        "eps=0 head_dim=8 num_heads=4 num_kv_heads=2 scale=0.353553 window=none"
    ]
    assert fuse_rope_attention(fused) == fused


def test_queries_that_are_read_elsewhere_are_left_alone():
    graph = rotated(num_layers=1)
    query = next(graph.each("rope_kv_write")).out
    graph = replace(graph, outputs=(*graph.outputs, query))
    assert fuse_rope_attention(graph) == graph
