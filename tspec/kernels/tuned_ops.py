"""What launches are tuned as, on both backends, and what an entry of the file of configurations has to say of them.

products   op: the kernel's, HEAD for all of the head; shape: n, k (of gate and up: n of each); weights' dtype
attention  op: ATTENTION; shape: num_heads, num_kv_heads, head_dim; dtype of the caches
"""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, NoReturn

from tspec.core.dtypes import DType
from tspec.core.errors import ContractError
from tspec.kernels.tuned_store import TunedKey

HEAD = "head"
"""What all kernels of the head are tuned as."""

ATTENTION = "rope_attention"

PRODUCT_OPS = ("linear", "linear_add", "linear_silu_mul", "norm_linear", "norm_linear_silu_mul", HEAD)
"""What products are tuned as."""

PRODUCT_SHAPE = ("n", "k")
ATTENTION_SHAPE = ("num_heads", "num_kv_heads", "head_dim")

Products = dict[tuple[str, int, int, DType], Any]
"""Configurations by (tuning_op, N, K, dtype of the weights)."""

Attentions = dict[tuple[int, int, int, DType], Any]
"""Configurations by (query heads, KV heads, head dim, dtype of the caches)."""


def is_head(kernel: str) -> bool:
    """Whether `kernel` multiplies by the head, whose sums are never split."""
    return kernel == HEAD or "head_" in kernel


def tuning_op(kernel: str) -> str:
    """What `kernel` is tuned as: those of the head share one configuration, since their logits have one order."""
    return HEAD if is_head(kernel) else kernel


def check_entry(
    key: TunedKey, numbers: Mapping[str, int | None], kind: type[Any], dtypes: Collection[str]
) -> None:
    """Check all of an entry but its numbers' values.

    kind     dataclass of the op's configurations
    dtypes   that the backend has kernels for
    Errors   ContractError for an op, a shape, a dtype or names of numbers that no kernel takes
    """
    if key.op not in (*PRODUCT_OPS, ATTENTION):
        refuse("op", key.op, f"one of {', '.join((*PRODUCT_OPS, ATTENTION))}")
    shape, needed = dict(key.shape), ATTENTION_SHAPE if key.op == ATTENTION else PRODUCT_SHAPE
    if shape.keys() != set(needed):
        refuse(f"shape of {key.op}", ", ".join(shape), ", ".join(sorted(needed)))
    if key.dtype not in dtypes:
        refuse(f"dtype of {key.op}", key.dtype, f"one of {', '.join(dtypes)}")
    names = {each.name for each in fields(kind)}
    if numbers.keys() != names:
        refuse(f"numbers of {key.op}", ", ".join(numbers), ", ".join(sorted(names)))


def refuse(what: str, got: object, need: str) -> NoReturn:
    """Raise ContractError for an entry."""
    raise ContractError(what, got=got, need=need, fix="Tune it again, or remove the entry.")


def by_shape(entries: Mapping[TunedKey, Any]) -> tuple[Products, Attentions]:
    """Configurations of checked entries of one device, as plans are bound with them."""
    products: Products = {}
    attentions: Attentions = {}
    for key, tuned in entries.items():
        shape, dtype = dict(key.shape), DType(key.dtype)
        if key.op == ATTENTION:
            attentions[shape["num_heads"], shape["num_kv_heads"], shape["head_dim"], dtype] = tuned
        else:
            products[key.op, shape["n"], shape["k"], dtype] = tuned
    return products, attentions
