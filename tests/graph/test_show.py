"""The printed form of a graph.

Run: pytest tests/graph/test_show.py
"""

from support.graphs import ops_text, tiny_config

from tspec.core.dtypes import DType
from tspec.graph.builder import GraphBuilder, weight
from tspec.models import build_graph


def test_a_graph_prints_one_op_a_line():
    build = GraphBuilder("demo")
    x = build.embed("embed", weight("table", (10, 4), DType.BFLOAT16))
    y = build.rms_norm("norm", x, weight("scale", (4,), DType.FLOAT32), 1e-5)
    a, b = build.split(["a", "b"], build.linear("ab", y, weight("ab.weight", (6, 4), DType.BFLOAT16)), [3, 3])
    assert (
        str(build.build([a, b]))
        == """\
graph demo
  input tokens: i32[B, T]
  input ancestors: i64[B, T]
  input depth: i32[B, T]
  input num_nodes: i32[B]
  input prefix_len: i32[B]
  input block_table: i32[B, max_blocks]
  embed: f32[B, T, 4] = embed(tokens, table)
  norm: f32[B, T, 4] = rms_norm(embed, scale) eps=1e-05
  ab: f32[B, T, 6] = linear(norm, ab.weight, -)
  a: f32[B, T, 3], b: f32[B, T, 3] = split(ab) sizes=[3, 3]
  return a, b"""
    )


def test_many_kv_caches_print_as_a_range():
    graph = build_graph(tiny_config(num_layers=3))
    line = ops_text(graph).splitlines()[-2]
    assert line == (
        "k_cache.0@2 .. v_cache.2@2 = "
        "kv_commit(path, num_out, prefix_len, block_table, k_cache.0@1 .. v_cache.2@1)"
    )


def test_a_graph_without_outputs_returns_nothing():
    assert ops_text(build_graph(tiny_config(), head="none")).endswith("return nothing")
