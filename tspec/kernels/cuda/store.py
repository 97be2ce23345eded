"""The file of tuned configurations, for the cuda kernels: what its entries mean, and which of them a kernel may run.

    products   op: the kernel's, "head" for all of the head; shape: n, k (of gate and up: n of each); weights' dtype
    attention  op: "rope_attention"; shape: num_heads, num_kv_heads, head_dim; dtype of the caches

Reads the file; compiles and measures nothing.
"""

from collections.abc import Mapping
from dataclasses import fields

import triton

from tspec.core.dtypes import DType
from tspec.core.errors import ContractError
from tspec.kernels.cuda.tuned import PRODUCT_OPS, AttentionTuned, Tuned, TunedTable
from tspec.kernels.cuda.tuned_checks import check_attention, check_product
from tspec.kernels.tuned_store import TunedKey, TunedStore, load_tuned, tuned_file

ATTENTION = "rope_attention"
PRODUCT_SHAPE = {"n", "k"}
ATTENTION_SHAPE = {"num_heads", "num_kv_heads", "head_dim"}

CudaStore = TunedStore[Tuned | AttentionTuned]


def open_store(device: str, arch: str) -> CudaStore:
    """Read the user's file for a device as its driver names it, of architecture `arch`."""

    def parse(key: TunedKey, numbers: Mapping[str, int | None]) -> Tuned | AttentionTuned:
        return _parse(key, numbers, arch)

    return load_tuned(tuned_file(), device, f"triton {triton.__version__}", parse)


def read_table(device: str, arch: str) -> TunedTable:
    """All that was found for a device, as the table that plans are bound with."""
    products, attention = {}, {}
    for key, tuned in open_store(device, arch).entries.items():
        shape, dtype = dict(key.shape), DType(key.dtype)
        if isinstance(tuned, AttentionTuned):
            heads = shape["num_heads"], shape["num_kv_heads"], shape["head_dim"]
            attention[(*heads, dtype)] = tuned
        else:
            products[key.op, shape["n"], shape["k"], dtype] = tuned
    return TunedTable(products, attention)


def _parse(key: TunedKey, numbers: Mapping[str, int | None], arch: str) -> Tuned | AttentionTuned:
    """Errors: ContractError for an op, a shape, a dtype, names or numbers that no kernel takes."""
    shape, is_attention = dict(key.shape), key.op == ATTENTION
    if not is_attention and key.op not in PRODUCT_OPS:
        _refuse("op", key.op, f"one of {', '.join((*PRODUCT_OPS, ATTENTION))}")
    needed = ATTENTION_SHAPE if is_attention else PRODUCT_SHAPE
    if shape.keys() != needed:
        _refuse(f"shape of {key.op}", ", ".join(shape), ", ".join(sorted(needed)))
    if key.dtype not in DTYPES:
        _refuse(f"dtype of {key.op}", key.dtype, f"one of {', '.join(DTYPES)}")
    kind = AttentionTuned if is_attention else Tuned
    names = {each.name for each in fields(kind)}
    if numbers.keys() != names:
        _refuse(f"numbers of {key.op}", ", ".join(numbers), ", ".join(sorted(names)))
    missing = [name for name, number in numbers.items() if number is None and name != "matrix_side"]
    if missing:
        _refuse(f"{missing[0]} of {key.op}", None, "a number")
    tuned = kind(**numbers)  # type: ignore[arg-type]
    if isinstance(tuned, AttentionTuned):
        check_attention(key.op, shape["head_dim"], DType(key.dtype), arch, tuned)
    else:
        check_product(key.op, shape["n"], shape["k"], DType(key.dtype), arch, tuned)
    return tuned


DTYPES = ("bfloat16", "float16", "float32")


def _refuse(what: str, got: object, need: str) -> None:
    raise ContractError(what, got=got, need=need, fix="Tune it again, or remove the entry.")
