"""The file of tuned configurations, for the CPU kernels: what its entries mean, and which of them a kernel may run.

An entry's device is the CPU's name, its vectors as Numba compiles for it, and the threads of a pass.
Reads the file; compiles and measures nothing.
"""

from collections.abc import Mapping
from typing import Any

import numba

from tspec.kernels.cpu.host import cpu_model, read_host
from tspec.kernels.cpu.pack import STORAGE
from tspec.kernels.cpu.tuned import (
    ATTENTION_SPACE,
    PRODUCT_SPACE,
    AttentionTuned,
    CpuTable,
    ProductTuned,
    thread_choices,
)
from tspec.kernels.tuned_ops import ATTENTION, by_shape, check_entry, refuse
from tspec.kernels.tuned_store import TunedKey, TunedStore, load_tuned, tuned_file

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
    return CpuTable(*by_shape(open_store(num_threads).entries))


def _parse(
    key: TunedKey, numbers: Mapping[str, int | None], num_threads: int
) -> ProductTuned | AttentionTuned:
    """Errors: ContractError for an op, a shape, a dtype, names or numbers that no kernel takes."""
    is_attention = key.op == ATTENTION
    kind: Any = AttentionTuned if is_attention else ProductTuned
    check_entry(key, numbers, kind, DTYPES)
    choices = ATTENTION_SPACE if is_attention else {**PRODUCT_SPACE, "threads": thread_choices(num_threads)}
    for name, number in numbers.items():
        if number not in choices[name]:
            refuse(f"{name} of {key.op}", number, f"one of {', '.join(map(str, choices[name]))}")
    tuned: ProductTuned | AttentionTuned = kind(**numbers)
    return tuned
