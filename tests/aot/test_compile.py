"""Every cuda kernel compiles for every supported part, spills nothing, fits, and uses the tensor cores. No GPU.

A few variants run by default, all others where `slow` tests run.

Run: pytest tests/aot/test_compile.py
     pytest -m slow tests/aot/test_compile.py
"""

import re
from itertools import product

import pytest
from support.early_launch import hold_early_launch
from support.kernel_budgets import TENSOR_CORE, max_registers
from support.layouts import layouts_of_squares

from tspec.core.dtypes import DType
from tspec.kernels.cuda.cases import aot_cases
from tspec.kernels.cuda.linear_cases import linear_case
from tspec.kernels.cuda.resources import TARGETS, compile_case, read_case, shared_limit
from tspec.kernels.cuda.tuned import default_tuned, keeps_order_of_squares

CASES = [
    pytest.param(case, id=str(case), marks=() if case.is_representative else pytest.mark.slow)
    for case in aot_cases()
]


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_compiles_and_fits(case):
    reading = read_case(case)
    assert reading.spilled_bytes == 0, reading.describe()
    assert reading.shared_bytes <= shared_limit(case.arch), reading.describe()
    assert reading.registers <= max_registers(case), reading.describe()
    hold_early_launch(case, reading.assembly)
    if case.has_dot:
        assert reading.tensor_core.startswith(TENSOR_CORE[case.arch]), reading.describe()


def test_the_cases_cover_every_part_and_have_names_of_their_own():
    names = [str(case) for case in aot_cases()]
    assert len(set(names)) == len(names)
    assert {case.arch for case in aot_cases()} == TARGETS.keys()


@pytest.mark.parametrize(
    "arch",
    [
        pytest.param("sm_90"),
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("sm_80", "sm_100", "gfx942")),
    ],
)
@pytest.mark.parametrize("kind", ["norm_linear", "norm_linear_silu_mul"])
def test_the_squares_of_a_row_are_added_in_one_order_in_tiles_of_every_height(arch, kind):
    """The one sum whose order the compiler chooses: the same lanes hold the same runs of a row, whatever M_TILE."""
    found = [
        layouts_of_squares(
            compile_case(linear_case(arch, kind, rows, 4096, 4096, DType.BFLOAT16, "one")).asm["ttgir"]
        )
        for rows in (1, 32, 64)
    ]
    assert len(found[0]) == 1
    assert found[0] == found[1] == found[2]


def test_every_default_keeps_the_order_of_squares():
    shapes = [(size, size) for size in (560, 576, 1024, 4096)]
    for arch, dtype, (n, k) in product(TARGETS, (DType.BFLOAT16, DType.FLOAT16), shapes):
        assert keeps_order_of_squares(default_tuned("norm_linear", n, k, dtype, arch), arch), (arch, n)


def test_partial_sums_are_released_before_the_counter_and_read_past_l1_after_it():
    case = linear_case("sm_90", "linear_add", 1, 4096, 4096, DType.BFLOAT16, "one")
    ptx = compile_case(case).asm["ptx"]
    order = [
        re.search(pattern, ptx).start()
        for pattern in (r"st\.global", r"atom\.global\.gpu\.acq_rel\.add", r"ld\.global\.cg")
    ]
    assert order == sorted(order)
    between = ptx[order[0] : order[1]]
    assert "bar" in between[between.rindex("st.global") :], (
        "all threads meet between their stores and the atomic"
    )


def test_weights_are_prefetched_before_the_wait_for_the_launch_before():
    case = linear_case("sm_90", "norm_linear", 1, 6144, 4096, DType.BFLOAT16, "one")
    ptx = compile_case(case).asm["ptx"]
    order = [
        ptx.index(word)
        for word in (
            "griddepcontrol.launch_dependents",
            "prefetch.global.L2",
            "griddepcontrol.wait",
            "cp.async.cg",
        )
    ]
    assert order == sorted(order)
    assert ptx.rindex("prefetch.global.L2") < ptx.index("griddepcontrol.wait")
    assert "ld.global" not in ptx[: ptx.index("griddepcontrol.wait")]
