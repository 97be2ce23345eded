"""What the checks of tuned configurations let pass, as compiled: it fits, and bits do not follow the rows. No GPU.

Configurations at the corners of what is legal, in the least and the tallest tile of rows.

Run: pytest tests/aot/test_tuned_checks.py
     pytest -m slow tests/aot/test_tuned_checks.py
"""

from dataclasses import replace

import pytest
from support.kernel_budgets import TENSOR_CORE
from support.layouts import layouts_of_squares, slots_in_threads

from tspec.core.dtypes import DType
from tspec.core.errors import ContractError
from tspec.kernels.cuda.attention_cases import attention_case
from tspec.kernels.cuda.launch import plan_linear
from tspec.kernels.cuda.linear_cases import DTYPES, EPILOGUES, PDL_ARCHITECTURES, linear_case
from tspec.kernels.cuda.resources import TARGETS, compile_case, read_case
from tspec.kernels.cuda.tuned import ARCHITECTURES, ATTENTION_ROW_TILES, AttentionTuned, Tuned
from tspec.kernels.cuda.tuned_checks import (
    attention_shared_bytes,
    check_attention,
    check_product,
    product_shared_bytes,
)

SIDE = 4096
PRODUCTS = [
    Tuned(block_n, block_k, split_k, num_warps, num_stages)
    for block_n, block_k, split_k, num_warps, num_stages in (
        (64, 256, 1, 8, 2),
        (128, 128, 2, 4, 3),
        (128, 64, 1, 2, 2),
        (64, 16, 8, 4, 8),
        (64, 64, 4, 4, 1),
    )
]
ATTENTION = [
    AttentionTuned(chunk_tiles, row_tile, num_warps, num_stages)
    for chunk_tiles, row_tile, num_warps, num_stages in ((1, 64, 8, 2), (8, 64, 4, 1), (32, 16, 4, 2))
]
QUICK = "sm_90"


def legal_products(arch: str) -> list:
    """(kind, configuration) of those that may run on `arch`."""
    side = 16 if arch == "gfx942" else None
    found = []
    for kind in ("linear_add", "norm_linear_silu_mul", "norm_head_sample"):
        for tuned in (replace(each, matrix_side=side) for each in PRODUCTS):
            try:
                check_product(kind, SIDE, SIDE, DType.BFLOAT16, arch, tuned)
            except ContractError:
                continue
            found.append((kind, tuned))
    return found


def legal_attention(arch: str) -> list:
    """(head_dim, configuration) of those that may run on `arch`."""
    side = 16 if arch == "gfx942" else None
    found = []
    for head_dim in (64, 128, 256):
        for tuned in (replace(each, matrix_side=side) for each in ATTENTION):
            try:
                check_attention("rope_attention", head_dim, DType.BFLOAT16, arch, tuned)
            except ContractError:
                continue
            found.append((head_dim, tuned))
    return found


def parameters(legal):
    return [
        pytest.param(arch, *each, marks=() if (arch, number) == (QUICK, 0) else pytest.mark.slow)
        for arch in TARGETS
        for number, each in enumerate(legal(arch))
    ]


def product_case(arch: str, kind: str, rows: int, tuned: Tuned):
    """The ahead-of-time case of `kind` with another configuration than the default."""
    case = linear_case(arch, kind, rows, SIDE, SIDE, DType.BFLOAT16, "one")
    launch = plan_linear(
        kind, EPILOGUES[kind], rows, SIDE, SIDE, DTYPES[DType.BFLOAT16][1], tuned, arch in PDL_ARCHITECTURES
    )
    is_split = tuned.split_k > 1
    scratch = {
        "partials_ptr": "*fp32" if is_split else None,
        "counters_ptr": "*i32" if is_split else None,
    }
    arguments = {**case.arguments, **scratch}
    return replace(case, arguments=arguments, constexprs=launch.constexprs, options=launch.options)


@pytest.mark.parametrize(("arch", "kind", "tuned"), parameters(legal_products))
def test_a_legal_product_fits_and_has_one_instruction_and_one_order_in_tiles_of_every_height(
    arch, kind, tuned
):
    cases = [product_case(arch, kind, rows, tuned) for rows in (1, 32, 64)]
    most = product_shared_bytes(kind, DType.BFLOAT16, ARCHITECTURES[arch], tuned)
    readings = [read_case(case) for case in cases]
    for reading in readings:
        assert reading.shared_bytes <= most, reading.describe()
        assert reading.tensor_core.startswith(TENSOR_CORE[arch]), reading.describe()
    if kind.startswith("norm_"):
        layouts = [layouts_of_squares(compile_case(case).asm["ttgir"]) for case in cases]
        assert len(layouts[0]) == 1
        assert layouts[0] == layouts[1] == layouts[2]


@pytest.mark.parametrize(("arch", "head_dim", "tuned"), parameters(legal_attention))
def test_legal_attention_fits_and_sums_slots_in_one_order_in_row_tiles_of_every_width(arch, head_dim, tuned):
    orders = []
    for row_tile in (each for each in ATTENTION_ROW_TILES if each <= tuned.row_tile):
        case = attention_case(arch, "bf16", head_dim, 4, replace(tuned, row_tile=row_tile), norms=True)
        compiled = compile_case(case)
        assert compiled.metadata.shared <= attention_shared_bytes(
            head_dim, DType.BFLOAT16, ARCHITECTURES[arch], tuned
        )
        orders.append(slots_in_threads(compiled.asm["ttgir"]))
    assert len(orders[0]) == 1
    assert all(order == orders[0] for order in orders)


def test_every_part_has_configurations_at_the_corners():
    assert all(len(legal_products(arch)) >= 3 and len(legal_attention(arch)) >= 2 for arch in TARGETS)
