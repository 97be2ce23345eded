"""What the kernels over rows, features and levels of a tree are compiled as, for the ahead-of-time tests.

Constants come from the functions that the launchers use. Compiles nothing.
"""

from collections.abc import Iterator
from typing import Any

from tspec.kernels.cuda import expand_tree, features, norm, rows
from tspec.kernels.cuda.linear_cases import PDL_ARCHITECTURES
from tspec.kernels.cuda.resources import TARGETS, AotCase

EMBED = "out_ptr:*bf16 tokens_ptr:*i32 weight_ptr:*bf16 num_nodes_ptr:*i32 bucket_nodes:i32"
LAST_ROW = "out_ptr:*bf16 x_ptr:*bf16 num_nodes_ptr:*i32 bucket_nodes:i32"
PARENT_ROWS = """
    out_ptr:*bf16 x_ptr:*bf16 next_from_ptr:*i32 level_nodes_ptr:*i32 rows_each:i32 width:i32 most:i32"""
CONCAT = "out_ptr:*bf16 a_ptr:*bf16 b_ptr:*bf16"
SILU_ADD = "out_ptr:*bf16 x_ptr:*bf16 residual_ptr:*bf16 size:i32"
RMS_NORM = "out_ptr:*bf16 x_ptr:*bf16 norm_ptr:*fp32 eps:fp32"
KEEP_FEATURES = """
    features_ptr:*bf16 x_ptr:*bf16 path_ptr:*i32 num_out_ptr:*i32 num_nodes_ptr:*i32 prefix_len_ptr:*i32
    block_table_ptr:*i32 bucket_nodes:i32 max_blocks:i32 column:i32"""
READ_FEATURES = """
    out_ptr:*bf16 features_ptr:*bf16 depth_ptr:*i32 block_table_ptr:*i32 prefix_len_ptr:*i32 num_nodes_ptr:*i32
    bucket_nodes:i32 max_blocks:i32 column:i32"""
EXPAND_TREE = """
    scores_ptr:*fp32 next_tokens_ptr:*i32 next_from_ptr:*i32 next_scores_ptr:*fp32 next_ancestors_ptr:*i64
    next_depth_ptr:*i32 tokens_ptr:*i32 logprobs_ptr:*fp32 row_scores_ptr:*fp32 ancestors_ptr:*i64
    level_nodes_ptr:*i32 first_node:i32 depth:i32"""

COLS = (576, 4096)
"""A narrow row, and one of several pieces, whose features begin at a known column."""

NORM_COLS = (576, 4096, 24576, 32768)
TREES = ((1, 10, 10), (10, 10, 10), (1, 1, 1), (64, 64, 64))
"""Rows of a level, candidates a row, width of the next level."""

Arguments = dict[str, str | int | None]

REPRESENTATIVE = ("expand_tree-10x10", "rms_norm-bf16-4096")


def cases() -> Iterator[AotCase]:
    """Every variant of the kernels of this family."""
    for arch in TARGETS:
        use_pdl = arch in PDL_ARCHITECTURES
        for cols in COLS:
            yield from _row_cases(arch, cols, use_pdl)
        for cols in NORM_COLS:
            constants = norm.constexprs(cols, use_pdl)
            options = norm.options(cols, use_pdl)
            yield _case(arch, f"rms_norm-bf16-{cols}", norm._rms_norm, RMS_NORM, constants, options)
        yield from _tree_cases(arch, use_pdl)


def _row_cases(arch: str, cols: int, use_pdl: bool) -> Iterator[AotCase]:
    options, one = rows.row_options(use_pdl), rows.constexprs(cols, use_pdl)
    three = features.constexprs(3 * cols, cols, use_pdl)
    place: Arguments = {"column": cols} if cols == COLS[-1] else {}
    every_node: Arguments = {"path_ptr": None, "num_out_ptr": None}
    for name, kernel, types, constants, changes in (
        ("embed", rows._embed, EMBED, one, {}),
        ("last_row", rows._last_row, LAST_ROW, one, {}),
        ("parent_rows", rows._parent_rows, PARENT_ROWS, one, {}),
        ("concat", rows._concat, CONCAT, rows.concat_constexprs(cols, cols, use_pdl), {}),
        ("keep_features", features._keep_features, KEEP_FEATURES, three, place),
        ("keep_features-all", features._keep_features, KEEP_FEATURES, three, place | every_node),
        ("read_features", features._read_features, READ_FEATURES, three, place),
    ):
        yield _case(arch, f"{name}-bf16-{cols}", kernel, types, constants, options, changes)
    if cols == COLS[0]:
        constants = {"BLOCK": one["BLOCK"], "USE_PDL": use_pdl}
        yield _case(arch, "silu_add-bf16", rows._silu_add, SILU_ADD, constants, options)


def _tree_cases(arch: str, use_pdl: bool) -> Iterator[AotCase]:
    for level, most, width in TREES:
        constants = expand_tree.constexprs(level, most, width, use_pdl)
        options = expand_tree.options(level, most, use_pdl)
        above: Arguments = {"row_scores_ptr": None, "ancestors_ptr": None} if level == 1 else {}
        name = f"expand_tree-{level}x{most}"
        yield _case(arch, name, expand_tree._expand_tree, EXPAND_TREE, constants, options, above)


def _case(
    arch: str,
    name: str,
    kernel: Any,
    types: str,
    constants: dict[str, Any],
    options: dict[str, Any],
    changes: Arguments | None = None,
) -> AotCase:
    pairs = (each.split(":") for each in types.split())
    arguments: Arguments = {argument: kind for argument, kind in pairs}
    arguments |= changes or {}
    return AotCase(name, arch, kernel, arguments, constants, options, False, name in REPRESENTATIVE)
