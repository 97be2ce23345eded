"""The file of tuned configurations, for the CPU kernels: what its entries mean, and which of them a kernel may run.

    device     the CPU's name, its vectors as Numba compiles for it, and the threads of a pass
    products   op: the launch's, "head" for all of the head; shape: n, k (of gate and up: n of each); weights' dtype
    attention  op: "rope_attention"; shape: num_heads, num_kv_heads, head_dim; dtype of the caches

Reads the file; compiles and measures nothing.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numba

from tspec.core.dtypes import DType
from tspec.core.errors import ContractError
from tspec.kernels.cpu.host import cpu_model, read_host
from tspec.kernels.cpu.pack import STORAGE
from tspec.kernels.cpu.tuned import (
    ATTENTION,
    ATTENTION_SPACE,
    PRODUCT_OPS,
    PRODUCT_SPACE,
    AttentionTuned,
    CpuTable,
    ProductTuned,
    thread_choices,
)
from tspec.kernels.tuned_store import TunedKey, TunedStore, load_tuned, tuned_file

PRODUCT_SHAPE = {"n", "k"}
ATTENTION_SHAPE = {"num_heads", "num_kv_heads", "head_dim"}
DTYPES = tuple(dtype.value for dtype in STORAGE)

CpuStore = TunedStore[ProductTuned | AttentionTuned]


def device_name(num_threads: int) -> str:
    """What an entry's device is for passes of `num_threads` threads here."""
    return f"{cpu_model()}, {read_host().name}, threads: {num_threads}"


def open_store(num_threads: int) -> CpuStore:
    """Read the user's file for this host."""

    def parse(key: TunedKey, numbers: Mapping[str, int | None]) -> ProductTuned | AttentionTuned:
        return _parse(key, numbers, num_threads)

    return load_tuned(tuned_file(), device_name(num_threads), f"numba {numba.__version__}", parse)


def read_table(num_threads: int) -> CpuTable:
    """All that was found for this host, as the table that plans are bound with."""
    products, attention = {}, {}
    for key, tuned in open_store(num_threads).entries.items():
        shape, dtype = dict(key.shape), DType(key.dtype)
        if isinstance(tuned, AttentionTuned):
            heads = shape["num_heads"], shape["num_kv_heads"], shape["head_dim"]
            attention[(*heads, dtype)] = tuned
        else:
            products[key.op, shape["n"], shape["k"], dtype] = tuned
    return CpuTable(products, attention)


def _parse(
    key: TunedKey, numbers: Mapping[str, int | None], num_threads: int
) -> ProductTuned | AttentionTuned:
    """Errors: ContractError for an op, a shape, a dtype, names or numbers that no kernel takes."""
    is_attention = key.op == ATTENTION
    if not is_attention and key.op not in PRODUCT_OPS:
        _refuse("op", key.op, f"one of {', '.join((*PRODUCT_OPS, ATTENTION))}")
    needed = ATTENTION_SHAPE if is_attention else PRODUCT_SHAPE
    if dict(key.shape).keys() != needed:
        _refuse(f"shape of {key.op}", ", ".join(dict(key.shape)), ", ".join(sorted(needed)))
    if key.dtype not in DTYPES:
        _refuse(f"dtype of {key.op}", key.dtype, f"one of {', '.join(DTYPES)}")
    kind: Any = AttentionTuned if is_attention else ProductTuned
    names = {each.name for each in fields(kind)}
    if numbers.keys() != names:
        _refuse(f"numbers of {key.op}", ", ".join(numbers), ", ".join(sorted(names)))
    choices = ATTENTION_SPACE if is_attention else {**PRODUCT_SPACE, "threads": thread_choices(num_threads)}
    for name, number in numbers.items():
        if number not in choices[name]:
            _refuse(f"{name} of {key.op}", number, f"one of {', '.join(map(str, choices[name]))}")
    tuned: ProductTuned | AttentionTuned = kind(**numbers)
    return tuned


def _refuse(what: str, got: object, need: str) -> None:
    raise ContractError(what, got=got, need=need, fix="Tune it again, or remove the entry.")
