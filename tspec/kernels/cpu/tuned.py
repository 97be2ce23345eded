"""Launch configurations: what a kernel of this package may be tuned in, and safe defaults.

Nothing here decides the order of a sum, so that no bit follows a configuration: blocks of K go on with the sums of
those before, and rows are independent. What would decide it (tiles and chunks of attention) is a constant. How wide
the panels of packed weights are is one as well: it is compiled in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tspec.core.dtypes import DType
from tspec.kernels.cpu.attention_tiles import GROUP_ROWS
from tspec.kernels.cpu.host import read_host
from tspec.kernels.tuned_ops import tuning_op

_HOST = read_host()


@dataclass(frozen=True, slots=True)
class ProductTuned:
    """One configuration of the kernels that stream weights.

    claims        claims of panels a thread, about
    row_block     rows that share a loop over k
    k_block       steps of k that a panel is worked through at a time for several row blocks
    prefetch      bytes ahead of the stream at which weights are prefetched
    threads       threads that take part at most; None for all
    ahead_panels  panels of a thread's next weights that it fetches while it waits for the others before the launch
    """

    claims: int = 16
    row_block: int = _HOST.row_blocks[0]
    k_block: int = 256
    prefetch: int = _HOST.prefetch
    threads: int | None = None
    ahead_panels: int = 1


@dataclass(frozen=True, slots=True)
class AttentionTuned:
    """One configuration of attention.

    group_rows  query rows (node, head) that share the tiles they read
    """

    group_rows: int = GROUP_ROWS


PRODUCT_SPACE: Mapping[str, tuple[int | None, ...]] = {
    "claims": (4, 16, 64),
    "row_block": tuple(rows for rows in _HOST.row_blocks if rows > 1),
    "k_block": (128, 256, 512),
    "prefetch": (512, 1024, 2048, 4096),
    "ahead_panels": (0, 1, 2),
}
"""Choices of each number but `threads`, whose depend on how many there are."""

ATTENTION_SPACE: Mapping[str, tuple[int | None, ...]] = {
    "group_rows": tuple(1 << power for power in range(2, GROUP_ROWS.bit_length()))
}


def thread_choices(num_threads: int) -> tuple[int | None, ...]:
    """All, or half of them where a launch may be too small for all."""
    return (None, num_threads // 2) if num_threads > 1 else (None,)


def product_space(num_threads: int) -> Iterator[ProductTuned]:
    """Every configuration of a product for passes of `num_threads` threads, the default among them."""
    yield from _space(ProductTuned, {**PRODUCT_SPACE, "threads": thread_choices(num_threads)})


def attention_space() -> Iterator[AttentionTuned]:
    """Every configuration of attention, the default among them."""
    yield from _space(AttentionTuned, ATTENTION_SPACE)


def _space(kind: Any, choices: Mapping[str, tuple[int | None, ...]]) -> Iterator[Any]:
    for numbers in product(*choices.values()):
        yield kind(**dict(zip(choices, numbers, strict=True)))


@dataclass(frozen=True, slots=True)
class CpuTable:
    """What tuning found for this host, and the defaults for everything else.

    products   by (tuning_op, N, K, dtype of the weights); N of gate and up is that of each
    attention  by (query heads, KV heads, head dim, dtype of the caches)
    """

    products: Mapping[tuple[str, int, int, DType], ProductTuned] = field(default_factory=dict)
    attention: Mapping[tuple[int, int, int, DType], AttentionTuned] = field(default_factory=dict)

    def for_product(self, kind: str, n: int, k: int, dtype: DType) -> ProductTuned:
        """The configuration of launches of `kind` with weights [n, k]."""
        return self.products.get((tuning_op(kind), n, k, dtype), DEFAULT_PRODUCT)

    def for_attention(self, num_heads: int, num_kv_heads: int, head_dim: int, dtype: DType) -> AttentionTuned:
        """The configuration of attention."""
        return self.attention.get((num_heads, num_kv_heads, head_dim, dtype), DEFAULT_ATTENTION)


DEFAULT_PRODUCT, DEFAULT_ATTENTION = ProductTuned(), AttentionTuned()


def product_numbers(tuned: ProductTuned, num_threads: int) -> dict[str, int]:
    """The operands of a launch that `tuned` gives (launch_words.py), in a pass of `num_threads` threads."""
    return {
        "claims": tuned.claims,
        "row_block": tuned.row_block,
        "k_block": tuned.k_block,
        "prefetch": tuned.prefetch,
        "threads": num_threads if tuned.threads is None else tuned.threads,
        "ahead_panels": tuned.ahead_panels,
    }


def attention_numbers(tuned: AttentionTuned) -> dict[str, int]:
    """The operands of a launch that `tuned` gives."""
    return {"group_rows": tuned.group_rows}
