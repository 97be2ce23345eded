"""The file of tuned configurations, for the cuda kernels: what its entries mean, and which of them a kernel may run.

Reads the file; compiles and measures nothing.
"""

from collections.abc import Mapping

import triton

from tspec.core.dtypes import DType
from tspec.kernels.cuda.tuned import AttentionTuned, Tuned, TunedTable
from tspec.kernels.cuda.tuned_checks import check_attention, check_product
from tspec.kernels.tuned_ops import ATTENTION, by_shape, check_entry, refuse
from tspec.kernels.tuned_store import TunedKey, TunedStore, load_tuned, tuned_file

DTYPES = ("bfloat16", "float16", "float32")

CudaStore = TunedStore[Tuned | AttentionTuned]


def open_store(device: str, arch: str) -> CudaStore:
    """Read the user's file for a device as its driver names it, of architecture `arch`."""

    def parse(key: TunedKey, numbers: Mapping[str, int | None]) -> Tuned | AttentionTuned:
        return _parse(key, numbers, arch)

    return load_tuned(tuned_file(), device, f"triton {triton.__version__}", parse)


def read_table(device: str, arch: str) -> TunedTable:
    """All that was found for a device, as the table that plans are bound with."""
    return TunedTable(*by_shape(open_store(device, arch).entries))


def _parse(key: TunedKey, numbers: Mapping[str, int | None], arch: str) -> Tuned | AttentionTuned:
    """Errors: ContractError for an op, a shape, a dtype, names or numbers that no kernel takes."""
    kind, shape = AttentionTuned if key.op == ATTENTION else Tuned, dict(key.shape)
    check_entry(key, numbers, kind, DTYPES)
    missing = [name for name, number in numbers.items() if number is None and name != "matrix_side"]
    if missing:
        refuse(f"{missing[0]} of {key.op}", None, "a number")
    tuned = kind(**numbers)  # type: ignore[arg-type]
    if isinstance(tuned, AttentionTuned):
        check_attention(key.op, shape["head_dim"], DType(key.dtype), arch, tuned)
    else:
        check_product(key.op, shape["n"], shape["k"], DType(key.dtype), arch, tuned)
    return tuned
