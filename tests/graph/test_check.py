"""The form of a graph: defined once, before use, one type a name, KV caches read in their newest version.

Run: pytest tests/graph/test_check.py
"""

from dataclasses import replace

import pytest
from support.graphs import tiny_config

from tspec.core.dtypes import DType
from tspec.core.errors import ShapeError
from tspec.graph.check import check
from tspec.graph.ir import Value
from tspec.graph.passes import fuse
from tspec.models import LAYERS, build_graph


@pytest.fixture
def graph():
    return build_graph(tiny_config())


@pytest.mark.parametrize("architecture", LAYERS)
@pytest.mark.parametrize("head", ["all", "last", "none"])
def test_built_and_fused_graphs_pass(architecture, head):
    graph = build_graph(tiny_config(architecture), head=head)
    assert check(graph) is graph
    check(fuse(graph))


def test_a_read_before_the_definition_is_refused(graph):
    first, second, *rest = graph.ops
    with pytest.raises(
        ShapeError, match=r"operand embed of rms_norm layers.0.attn_norm in .*: got no definition"
    ):
        check(replace(graph, ops=(second, first, *rest)))


def test_a_second_definition_is_refused(graph):
    with pytest.raises(ShapeError, match=r"value embed in .*: got a second definition, need one"):
        check(replace(graph, ops=(graph.ops[0], *graph.ops)))


def test_a_use_under_another_type_is_refused(graph):
    embed, norm, *rest = graph.ops
    half = replace(embed.out, shape=("B", "T", 12))
    bad = replace(norm, inputs=(half, norm.inputs[1]))
    with pytest.raises(ShapeError, match=r"operand embed of rms_norm"):
        check(replace(graph, ops=(embed, bad, *rest)))


def test_an_output_that_nothing_defines_is_refused(graph):
    ghost = Value("ghost", ("B",), DType.INT32)
    with pytest.raises(ShapeError, match=r"output ghost of .*: got no definition"):
        check(replace(graph, outputs=(*graph.outputs, ghost)))


def test_an_overwritten_kv_cache_is_refused(graph):
    stale = next(graph.each("kv_write")).inputs[2]
    old = next(graph.each("attention"))
    bad = replace(old, inputs=(old.inputs[0], stale, *old.inputs[2:]))
    with pytest.raises(
        ShapeError, match=r"operand k_cache.0 of attention .*: got an overwritten version, need k_cache.0@1"
    ):
        check(replace(graph, ops=tuple(bad if op is old else op for op in graph.ops)))


def test_the_message_names_the_graph_pass(graph):
    with pytest.raises(ShapeError, match=r"after sink_last_row"):
        check(replace(graph, ops=graph.ops[1:]), after="sink_last_row")


def test_an_op_that_its_own_check_refuses_is_refused(graph):
    old = next(graph.each("attention"))
    bad = replace(old, attrs=old.attrs | {"head_dim": 7})
    with pytest.raises(ShapeError, match=r"of attention layers.0.attention"):
        check(replace(graph, ops=tuple(bad if op is old else op for op in graph.ops)))
