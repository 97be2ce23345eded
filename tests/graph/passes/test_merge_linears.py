"""Linears that read the same rows become one, and mean the same.

Run: pytest tests/graph/passes/test_merge_linears.py
"""

import pytest
from support.graphs import assert_same_meaning, ops_text, tiny_config

from tspec.core.dtypes import DType
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.passes.merge_linears import join_names, merge_linears
from tspec.models import LAYERS, build_graph


@pytest.mark.parametrize("architecture", LAYERS)
def test_merging_keeps_the_meaning(architecture):
    plain = build_graph(tiny_config(architecture), with_logits=True)
    merged = merge_linears(plain)
    assert len(list(merged.each("linear"))) == 4 * 2
    assert_same_meaning(plain, merged)


def graph_of(*, biases: tuple[bool, bool], dtypes: tuple[DType, DType] = (DType.FLOAT32, DType.FLOAT32)):
    build = GraphBuilder("g")
    x = build.embed("x", weight("table", (9, 4), DType.FLOAT32))
    outs = [
        build.linear(
            f"at.{name}",
            x,
            weight(f"m.{name}_proj.weight", (2, 4), dtype),
            weight(f"m.{name}_proj.bias", (2,), DType.FLOAT32) if has_bias else None,
        )
        for name, has_bias, dtype in zip(("q", "k"), biases, dtypes, strict=True)
    ]
    return build.build(outs)


def test_merged_linears_print_as_one_and_a_split():
    merged = merge_linears(graph_of(biases=(True, True)))
    assert (
        ops_text(merged)
        == """\
x: f32[B, T, 4] = embed(tokens, table)
at.qk: f32[B, T, 4] = linear(x, m.qk_proj.weight, m.qk_proj.bias)
at.q: f32[B, T, 2], at.k: f32[B, T, 2] = split(at.qk) sizes=[2, 2]
return at.q, at.k"""
    )
    assert merged.ops[1].reads[1].parts == ("m.q_proj.weight", "m.k_proj.weight")
    assert merge_linears(merged) == merged


def test_linears_of_which_one_has_a_bias_stay_apart():
    graph = graph_of(biases=(True, False))
    assert merge_linears(graph) == graph


def test_weights_of_different_dtypes_stay_apart():
    graph = graph_of(biases=(False, False), dtypes=(DType.FLOAT32, DType.BFLOAT16))
    assert merge_linears(graph) == graph


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        (["a.q_proj.weight", "a.k_proj.weight", "a.v_proj.weight"], "a.qkv_proj.weight"),
        (["m.gate_proj.bias", "m.up_proj.bias"], "m.gate_up_proj.bias"),
        (["layers.3.gate", "layers.3.up"], "layers.3.gate_up"),
    ],
)
def test_joined_names_read_as_what_they_join(names, joined):
    assert join_names(names) == joined
