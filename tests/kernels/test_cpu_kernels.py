"""Each CPU kernel gives what its reference gives: every storage, odd sizes, uneven batches, one and three threads.

A case is a graph of one op (and what makes its operands) that is checked, lowered, bound and run like a model's.

Run: pytest tests/kernels/test_cpu_kernels.py
"""

import pytest
from support.graphs import tiny_config
from support.kernel_case import DTYPES
from support.kernel_cases import KERNEL_CASES, hold_against_reference
from support.tolerance import TOLERANCES

from tspec.core.dtypes import DType
from tspec.graph.passes import fuse
from tspec.kernels.cpu.launch_words import OPERANDS
from tspec.kernels.reference import REFERENCES
from tspec.models import LAYERS, PASS_KINDS, build_graph

ELSEWHERE = {"index_rows", "accept_ratio"}
"""What numbers the rows is part of every case; acceptance by ratio has test_accept_ratio.py."""
KERNELS = OPERANDS.keys() - ELSEWHERE
STORING = {"embed", "rope_attention", "kv_commit"} | {
    kind for kind in OPERANDS if "linear" in kind or "head" in kind
}
"""Kernels that read or write weights or KV, and so come in three storages."""


@pytest.mark.parametrize("case", KERNEL_CASES, ids=str)
def test_a_kernel_gives_what_its_reference_gives(case):
    hold_against_reference(case.build(), case.kind, case.dtype)


@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_every_kernel_has_a_reference_and_cases_in_each_storage(kind):
    assert kind in REFERENCES
    dtypes = set(DTYPES) if kind in STORING else {DType.FLOAT32}
    assert {case.dtype for case in KERNEL_CASES if case.kind == kind} == dtypes
    assert {dtype for name, dtype in TOLERANCES if name == kind} == dtypes


@pytest.mark.parametrize("architecture", LAYERS)
@pytest.mark.parametrize("kind", PASS_KINDS)
def test_every_op_of_a_fused_model_has_cases(architecture, kind):
    config = tiny_config(
        architecture, has_qkv_bias=True, has_o_bias=True, has_mlp_bias=True, has_qk_norm=True
    )
    kinds = {op.kind for op in fuse(build_graph(config, **PASS_KINDS[kind])).ops}
    assert kinds <= {case.kind for case in KERNEL_CASES} | ELSEWHERE


def test_cases_have_names_of_their_own():
    """A case's random numbers come from its name."""
    assert len({str(case) for case in KERNEL_CASES}) == len(KERNEL_CASES)
