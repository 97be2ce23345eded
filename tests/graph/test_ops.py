"""Ops refuse operands that do not fit, naming the operand; costs count what a launch moves.

Run: pytest tests/graph/test_ops.py
"""

from dataclasses import replace

import pytest

from tspec.core.dtypes import DType
from tspec.core.errors import ShapeError
from tspec.graph.builder import GraphBuilder, derived, weight
from tspec.graph.ir import Op, Value
from tspec.graph.ops import OPS, check_op
from tspec.graph.signature import SIGNATURES, operand, optional_operand
from tspec.kernels.reference import REFERENCES

X = Value("x", ("B", "T", 32), DType.FLOAT32)
DIMS = {"B": 2, "T": 8, "max_blocks": 3, "max_positions": 100}


def test_every_kind_has_a_signature_a_spec_and_a_reference():
    assert set(SIGNATURES) == set(OPS) == set(REFERENCES)


def test_linear_infers_its_output():
    out = GraphBuilder("g").linear("y", X, weight("w", (9, 32), DType.BFLOAT16))
    assert (out.name, out.shape, out.dtype) == ("y", ("B", "T", 9), DType.FLOAT32)


def test_a_weight_of_another_width_is_named():
    with pytest.raises(
        ShapeError, match=r"operand weight of linear y: got bf16\[9, 31\], need bf16\[9, 32\]"
    ):
        GraphBuilder("g").linear("y", X, weight("w", (9, 31), DType.BFLOAT16))


def test_an_integer_weight_is_refused():
    with pytest.raises(
        ShapeError, match=r"operand weight of linear y: got i32\[9, 32\], need float\[9, 32\]"
    ):
        GraphBuilder("g").linear("y", X, weight("w", (9, 32), DType.INT32))


def test_a_bias_of_another_dtype_is_named():
    matrix, bias = weight("w", (9, 32), DType.BFLOAT16), weight("b", (9,), DType.BFLOAT16)
    with pytest.raises(ShapeError, match=r"operand bias of linear y: got bf16\[9\], need f32\[9\]"):
        GraphBuilder("g").linear("y", X, matrix, bias)


def test_an_operand_of_another_rank_is_named():
    with pytest.raises(ShapeError, match=r"operand weight of rms_norm y: got f32\[32, 1\], need f32\[32\]"):
        GraphBuilder("g").rms_norm("y", X, weight("w", (32, 1), DType.FLOAT32), 1e-5)


def test_a_missing_operand_is_named():
    with pytest.raises(ShapeError, match="operand b of add y: got none, need a value"):
        check_op(Op("add", (replace(X, name="y"),), (X, None)))


def test_another_number_of_operands_is_refused():
    with pytest.raises(ShapeError, match="inputs of add: got 1, need 2"):
        check_op(Op("add", (replace(X, name="y"),), (X,)))


def test_an_unknown_kind_lists_the_known_ones():
    with pytest.raises(ShapeError, match="op kind: got 'gelu', need one of embed, "):
        check_op(Op("gelu", (replace(X, name="y"),), (X,)))


def test_other_attributes_are_refused():
    with pytest.raises(ShapeError, match=r"attributes of add: got \['eps'\], need \[\]"):
        check_op(Op("add", (replace(X, name="y"),), (X, X), {"eps": 1.0}))


def test_a_split_has_to_use_up_its_input():
    with pytest.raises(ShapeError, match=r"operands of split a: got sizes \(8, 8\), need a sum of 32"):
        GraphBuilder("g").split(["a", "b"], X, [8, 8])


def test_heads_have_to_divide_a_row():
    with pytest.raises(ShapeError, match="operands of rope y: got 32, need a multiple of 12"):
        GraphBuilder("g").rope("y", X, derived("cos", (9, 6)), derived("sin", (9, 6)), 12)


def test_rotary_tables_have_half_a_head():
    with pytest.raises(ShapeError, match=r"operand cos of rope y: got f32\[9, 8\], need f32\[9, 4\]"):
        GraphBuilder("g").rope("y", X, derived("cos", (9, 8)), derived("sin", (9, 8)), 8)


def test_a_joined_gate_and_up_has_twice_the_rows_of_its_output():
    out = Value("y", ("B", "T", 10), DType.FLOAT32)
    with pytest.raises(
        ShapeError, match=r"operand weight of linear_silu_mul y: got bf16\[10, 32\], need bf16\[20, 32\]"
    ):
        check_op(Op("linear_silu_mul", (out,), (X, weight("w", (10, 32), DType.BFLOAT16), None)))


def test_operands_are_found_by_name():
    build = GraphBuilder("g")
    build.linear("y", X, weight("w", (9, 32), DType.BFLOAT16))
    assert operand(build.ops[0], "x") == X
    assert operand(build.ops[0], "out").name == "y"
    assert optional_operand(build.ops[0], "bias") is None
    with pytest.raises(KeyError):
        operand(build.ops[0], "gate")


def test_a_linear_moves_its_weight_once_and_its_rows():
    build = GraphBuilder("g")
    build.linear("y", X, weight("w", (9, 32), DType.BFLOAT16))
    moved, flops = OPS["linear"].cost(build.ops[0], DIMS)
    assert moved == 2 * 9 * 32 + 4 * 16 * (9 + 32)
    assert flops == 2 * 16 * 9 * 32


def test_an_embedding_moves_only_the_rows_it_looks_up():
    build = GraphBuilder("g")
    build.embed("y", weight("w", (1000, 32), DType.BFLOAT16))
    assert OPS["embed"].cost(build.ops[0], DIMS).bytes_moved == 16 * (4 + 32 * 2 + 32 * 4)


@pytest.mark.parametrize(("window", "seen"), [(None, 108), (10, 18)])
def test_attention_reads_the_context_once_a_row_up_to_its_window(window, seen):
    build = GraphBuilder("g")
    build.add_caches(0, 2, 8, DType.BFLOAT16)
    build.attention("y", 0, X, head_dim=8, num_kv_heads=2, scale=1.0, window=window)
    spec = OPS["attention"]
    moved, flops = spec.cost(build.ops[0], DIMS, context=100)
    read = 2 * seen * 2 * (2 * 8) * 2
    assert moved == read + 2 * 16 * 32 * 4 + 16 * 8 + 2 * 4 + 2 * 4 + 2 * 3 * 4
    assert flops == 4 * 16 * 32 * seen
    assert spec.cost(build.ops[0], DIMS).bytes_moved < moved


def test_ops_that_mix_rows_are_not_row_wise():
    mixing = {
        "embed",
        "rope",
        "kv_write",
        "rope_kv_write",
        "attention",
        "rope_attention",
        "last_row",
        "accept_match",
        "accept_ratio",
        "kv_commit",
        "edit_logits",
        "find_kept",
        "sample",
        "head_sample",
        "norm_head_sample",
        "token_logprobs",
        "keep_features",
        "read_features",
        "top_tokens",
        "draw_draft",
        "expand_tree",
        "parent_rows",
    }
    assert {kind for kind, spec in OPS.items() if not spec.is_row_wise} == mixing
