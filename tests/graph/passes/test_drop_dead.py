"""Ops whose results nobody needs go; KV writes stay.

Run: pytest tests/graph/passes/test_drop_dead.py
"""

from dataclasses import replace

from support.graphs import assert_same_meaning, ops_text, tiny_config

from tspec.core.dtypes import DType
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.check import check
from tspec.graph.passes.drop_dead import drop_dead
from tspec.models import build_graph


def test_what_no_output_needs_is_not_printed():
    build = GraphBuilder("g")
    x = build.embed("x", weight("table", (40, 4), DType.FLOAT32))
    build.add("dead_end", build.add("dead", x, x), x)
    graph = build.build([build.add("live", x, x)])
    alive = drop_dead(graph)
    assert (
        ops_text(alive)
        == """\
x: f32[B, T, 4] = embed(tokens, table)
live: f32[B, T, 4] = add(x, x)
return live"""
    )
    assert_same_meaning(graph, alive)


def test_without_outputs_only_the_kv_writes_and_what_they_need_stay():
    graph = build_graph(tiny_config(), head="none")
    alive = check(drop_dead(graph))
    assert alive.ops[-1].kind == "kv_write"
    assert not any(op.out.name in ("layers.1.q", "layers.1.attention", "layers.1.act") for op in alive.ops)
    assert_same_meaning(graph, alive)


def test_a_commit_stays_even_if_nobody_reads_the_verdict():
    graph = replace(build_graph(tiny_config()), outputs=())
    assert drop_dead(graph) == graph
