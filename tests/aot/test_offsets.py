"""Offsets of 64 bits wherever a tensor may hold more than 2**31 elements, read from each kernel's first IR. No GPU.

Tensors of that size are run through the smaller kernels in tests/interpret/test_large_offsets.py.

Run: pytest tests/aot/test_offsets.py
"""

import re

import pytest

from tspec.kernels.cuda.cases import aot_cases
from tspec.kernels.cuda.resources import compile_case

OF_ONE_ROW = ("norm_ptr", "q_norm_ptr", "k_norm_ptr")
"""Weights of a single row of columns, which 32 bits always reach."""

SAMPLES = {
    (case.kernel.__name__, case.constexprs.get("EPILOGUE")): case
    for case in aot_cases()
    if case.arch == "sm_90"
}


def first_offsets(ttir: str) -> dict[str, set[str]]:
    """Types of what is added to each pointer argument, or to a tensor that repeats it."""
    header = next(line for line in ttir.splitlines() if "tt.func public" in line)
    origins = {name: name for name in re.findall(r"%(\w+): !tt\.ptr<", header)}
    repeated = re.findall(r"%(\w+) = tt\.splat %(\w+) :", ttir)
    origins |= {name: origin for name, origin in repeated if origin in origins}
    types: dict[str, set[str]] = {}
    for pointer, kind in re.findall(
        r"tt\.addptr %(\w+), %\w+ : .*?x?(i32|i64)>?(?: loc|$)", ttir, re.MULTILINE
    ):
        if pointer in origins:
            types.setdefault(origins[pointer], set()).add(kind)
    return types


@pytest.mark.parametrize("case", SAMPLES.values(), ids=str)
def test_a_kernel_reaches_past_two_to_the_31_elements_of_every_tensor(case):
    types = first_offsets(compile_case(case).asm["ttir"])
    assert types, "the pattern finds no offset at all"
    assert {name for name, kinds in types.items() if "i32" in kinds} <= set(OF_ONE_ROW)


def test_an_offset_of_32_bits_is_found():
    ttir = """
      tt.func public @_kernel(%out_ptr: !tt.ptr<bf16> loc("out_ptr"), %x_ptr: !tt.ptr<f32> loc("x_ptr")) {
        %1 = tt.splat %x_ptr : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>> loc(#loc)
        %2 = tt.addptr %1, %0 : tensor<16x!tt.ptr<f32>>, tensor<16xi32> loc(#loc)
        %3 = tt.addptr %out_ptr, %0 : !tt.ptr<bf16>, i64 loc(#loc)
        %4 = tt.addptr %2, %0 : tensor<16x!tt.ptr<f32>>, tensor<16xi32> loc(#loc)
    """
    assert first_offsets(ttir) == {"x_ptr": {"i32"}, "out_ptr": {"i64"}}
