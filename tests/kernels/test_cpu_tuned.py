"""Launch configurations of the CPU kernels: no bit follows them, and only legal ones are taken from the file.

Run: pytest tests/kernels/test_cpu_tuned.py
"""

import json
import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_cases import rope_attention
from support.cpu_pass import Case, run_on_cpu
from support.kernel_case import DTYPES, Maker, random_trees
from support.product_cases import head_sample, linear

from tspec.core.dtypes import DType
from tspec.core.errors import ContractError
from tspec.kernels import tuned_store
from tspec.kernels.cpu import store as cpu_store
from tspec.kernels.cpu.store import open_store, read_table
from tspec.kernels.cpu.tuned import (
    DEFAULT_ATTENTION,
    DEFAULT_PRODUCT,
    AttentionTuned,
    CpuTable,
    ProductTuned,
    attention_space,
    product_space,
)
from tspec.kernels.tuned_ops import tuning_op
from tspec.kernels.tuned_store import FOLDER_VARIABLE, tuned_file

THREADS = 2
BF16, F32 = DType.BFLOAT16, DType.FLOAT32
PRODUCTS, ATTENTION = list(product_space(THREADS)), list(attention_space())
N, K = 130, 300
"""A last panel that is not full, and several blocks of K of every length that may be chosen but the longest."""

FOUND = replace(DEFAULT_PRODUCT, claims=64, prefetch=2048, threads=1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    tuned_store._log_once.cache_clear()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def bits(case: Case, tuned: CpuTable, num_threads: int = 1) -> list[np.ndarray]:
    found = run_on_cpu(case, num_threads=num_threads, tuned=tuned)
    return [tensor.contiguous().view(torch.uint8).numpy() for tensor in found.values()]


def assert_same_bits(case: Case, tuned: CpuTable, usual: list[np.ndarray], num_threads: int = 1) -> None:
    assert all(map(np.array_equal, bits(case, tuned, num_threads), usual)), tuned


def product_table(kind: str, dtype: DType, tuned: ProductTuned, n: int = N, k: int = K) -> CpuTable:
    return CpuTable(products={(tuning_op(kind), n, k, dtype): tuned})


@pytest.mark.parametrize("kind", ["linear", "linear_silu_mul"])
@pytest.mark.parametrize("rows", [1, 3, 21])
def test_every_configuration_of_a_product_gives_the_bits_of_the_default(kind, rows):
    case = linear(Maker("tuned"), BF16, n=N, k=K, counts=(rows,), bias=True, kind=kind)
    usual = bits(case, CpuTable())
    for tuned in PRODUCTS:
        assert_same_bits(case, product_table(kind, BF16, tuned), usual)


MAKERS = {
    **{kind: partial(linear, kind=kind) for kind in ("linear_add", "norm_linear", "norm_linear_silu_mul")},
    "norm_head_logits": partial(linear, kind="norm_head_logits"),
    **{kind: partial(head_sample, kind=kind) for kind in ("head_sample", "norm_head_sample")},
}


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(sorted(MAKERS)),
    st.sampled_from(DTYPES),
    st.sampled_from(PRODUCTS),
    st.integers(1, 200),
    st.integers(1, 300).map(lambda half: 2 * half),
    st.lists(st.integers(0, 24), min_size=1, max_size=3).filter(any),
)
def test_a_configuration_of_any_product_gives_the_bits_of_the_default(kind, dtype, tuned, n, k, counts):
    size = {"vocab": n} if kind.endswith("head_sample") else {"n": n}
    case = MAKERS[kind](Maker("any"), dtype, k=k, counts=tuple(counts), **size)
    table = product_table(kind, dtype, tuned, n, k)
    assert table.for_product(kind, n, k, dtype) == tuned
    assert_same_bits(case, table, bits(case, CpuTable()), THREADS)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("group", [1, 8])
def test_every_configuration_of_attention_gives_the_bits_of_the_default(dtype, group):
    trees = random_trees((9, 1, 64), 0)
    case = rope_attention(Maker("tuned"), dtype, 16, group, trees, prefixes=(70, 300, 130))
    usual = bits(case, CpuTable())
    kv_heads = 1 if group == 8 else 2
    for tuned in ATTENTION:
        assert_same_bits(case, CpuTable(attention={(group * kv_heads, kv_heads, 16, dtype): tuned}), usual)


def test_the_defaults_are_in_their_spaces_and_no_configuration_is_there_twice():
    for space, default in ((PRODUCTS, DEFAULT_PRODUCT), (ATTENTION, DEFAULT_ATTENTION)):
        assert default in space
        assert len(set(space)) == len(space)
    assert {each.threads for each in product_space(1)} == {None}


def test_what_was_put_is_what_plans_are_bound_with():
    store = open_store(THREADS)
    store.put("norm_linear", "bfloat16", FOUND, n=N, k=K)
    store.put("head", "float32", FOUND, n=N, k=K)
    store.put("rope_attention", "bfloat16", AttentionTuned(8), num_heads=9, num_kv_heads=3, head_dim=64)
    table = read_table(THREADS)
    assert table.for_product("norm_linear", N, K, BF16) == FOUND
    assert table.for_product("norm_head_logits", N, K, F32) == FOUND
    assert table.for_attention(9, 3, 64, BF16) == AttentionTuned(8)
    assert table.for_product("linear", N, K, BF16) == DEFAULT_PRODUCT
    assert table.for_product("norm_linear", N, K, F32) == DEFAULT_PRODUCT
    assert table.for_attention(9, 9, 64, BF16) == DEFAULT_ATTENTION


def test_entries_are_for_one_cpu_one_version_of_numba_and_one_number_of_threads(monkeypatch):
    open_store(THREADS).put("linear", "bfloat16", replace(FOUND, threads=None), n=N, k=K)
    assert read_table(THREADS) != CpuTable()
    assert read_table(THREADS + 1) == CpuTable()
    monkeypatch.setattr(cpu_store, "cpu_model", lambda: "another CPU")
    assert read_table(THREADS) == CpuTable()


def test_entries_of_another_numba_are_set_aside(monkeypatch):
    open_store(THREADS).put("linear", "bfloat16", FOUND, n=N, k=K)
    assert read_table(THREADS) != CpuTable()
    monkeypatch.setattr(cpu_store.numba, "__version__", "0.0")
    assert read_table(THREADS) == CpuTable()


ILLEGAL = {
    "an op without a kernel": lambda entry: entry.update(op="conv"),
    "a dtype without a kernel": lambda entry: entry.update(dtype="int32"),
    "a shape with rows": lambda entry: entry["shape"].update(rows=8),
    "a number too many": lambda entry: entry["config"].update(block_n=64),
    "a number too few": lambda entry: entry["config"].pop("claims"),
    "no claims": lambda entry: entry["config"].update(claims=0),
    "a block of 3 rows": lambda entry: entry["config"].update(row_block=3),
    "an odd block of K": lambda entry: entry["config"].update(k_block=129),
    "a number that is missing": lambda entry: entry["config"].update(prefetch=None),
    "more threads than there are": lambda entry: entry["config"].update(threads=THREADS + 1),
    "no thread": lambda entry: entry["config"].update(threads=0),
}


@pytest.mark.parametrize("fault", ILLEGAL)
def test_an_entry_that_is_not_legal_is_told_and_set_aside(fault, caplog):
    caplog.set_level(logging.WARNING, "tspec")
    store = open_store(THREADS)
    store.put("linear", "bfloat16", FOUND, n=N, k=K)
    store.put("linear_add", "bfloat16", FOUND, n=N, k=K)
    content = json.loads(tuned_file().read_text())
    ILLEGAL[fault](content["entries"][0])
    tuned_file().write_text(json.dumps(content))
    assert read_table(THREADS).products == {("linear_add", N, K, BF16): FOUND}
    (record,) = caplog.records
    assert "Entry 0: " in record.getMessage()


def test_an_illegal_configuration_cannot_be_put():
    with pytest.raises(ContractError, match="k_block of linear: got 129, need one of 128, 256, 512"):
        open_store(THREADS).put("linear", "bfloat16", replace(FOUND, k_block=129), n=N, k=K)
    assert not tuned_file().exists()
