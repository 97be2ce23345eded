"""The sampling kernels as compiled: offsets of 64 bits, divisions and logarithms that are precise, one order of sums.

Registers, spills and shared memory are read in test_compile.py. No GPU.

Run: pytest tests/aot/test_sampling.py
     pytest -m slow tests/aot/test_sampling.py
"""

import re

import pytest
from support.layouts import layouts_of_squares

from tspec.core.dtypes import DType
from tspec.kernels.cuda.linear_cases import linear_case
from tspec.kernels.cuda.resources import TARGETS, compile_case
from tspec.kernels.cuda.sampling_cases import REPRESENTATIVE, cases

BF16 = DType.BFLOAT16
HEADS = ("norm_head_sample", "norm_head_logits")
SAMPLING = [
    pytest.param(case, id=case.name, marks=() if case.name in REPRESENTATIVE["sm_90"] else pytest.mark.slow)
    for case in cases()
    if case.arch == "sm_90"
]
PARTS = [pytest.param(arch, marks=() if arch == "sm_90" else pytest.mark.slow) for arch in TARGETS]


def head(arch: str, kind: str, rows: int):
    return compile_case(linear_case(arch, kind, rows, 4096, 4096, BF16, "one"))


def offset_types(ttir: str) -> dict[str, set[str]]:
    """By pointer argument: the integer types of what is added to it first."""
    spread = dict(re.findall(r"(%\w+) = tt\.splat (%\w+_ptr)\b", ttir))
    found: dict[str, set[str]] = {}
    for start, kind in re.findall(r"tt\.addptr (%\w+), %\w+ : [^,]*, (tensor<[^>]*>|i\d+)", ttir):
        if (name := spread.get(start, start)).endswith("_ptr"):
            found.setdefault(name, set()).add(re.search(r"i\d+>?$", kind).group().strip(">"))
    return found


@pytest.mark.parametrize("case", SAMPLING)
def test_every_offset_that_follows_the_row_has_64_bits(case):
    """[B, T, V] has more than 2**31 elements from 256 rows of 64 nodes and a vocabulary of 131,072 on."""
    found = offset_types(compile_case(case).asm["ttir"])
    assert "%logits_ptr" in found
    assert found.keys() & {"%num_nodes_ptr", "%num_out_ptr"}, (
        "the one of the two that says which rows are live"
    )
    assert {name: kinds for name, kinds in found.items() if kinds != {"i64"}} == {}


def test_offsets_of_the_heads_logits_and_requests_have_64_bits():
    for kind in HEADS:
        found = offset_types(head("sm_90", kind, 64).asm["ttir"])
        assert {name for name, kinds in found.items() if kinds != {"i64"}} == {"%norm_ptr"}


@pytest.mark.parametrize("rows", [1, 64])
def test_scores_are_divided_as_ieee_says_and_logarithms_of_noise_are_no_approximations(rows):
    """Near 1 an approximate logarithm is off by the size of the result, and there the winners are drawn."""
    sample, logits = (head("sm_90", kind, rows).asm["ptx"] for kind in HEADS)
    assert "div.rn.f32" in sample and "lg2.approx" not in sample
    assert sample.count("div.full") == logits.count("div.full"), "those of the norm"


@pytest.mark.parametrize("case", SAMPLING)
def test_kernels_over_logits_divide_and_add_as_the_head_does(case):
    ptx = compile_case(case).asm["ptx"]
    assert not re.search(r"div\.(full|approx)\.f", ptx)
    if case.name.startswith("sample"):
        assert "div.rn.f32" in ptx and "lg2.approx" not in ptx


@pytest.mark.parametrize("arch", PARTS)
def test_both_kernels_of_the_head_add_the_squares_of_a_row_in_one_order_whatever_the_tile(arch):
    found = [
        layouts_of_squares(head(arch, kind, rows).asm["ttgir"]) for kind in HEADS for rows in (1, 32, 64)
    ]
    assert len(found[0]) == 1
    assert all(each == found[0] for each in found)
