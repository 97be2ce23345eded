"""What a search may choose from, before anything is asked of the part: `tuned_checks.py` says what is legal there.

A configuration belongs to a shape, so that numbers that decide the order of a sum (block_k, split_k) may be chosen
here. Tiles of a chunk of attention stay as they are: they are one number a model.
"""

from collections.abc import Iterator
from itertools import product

from tspec.kernels.cuda.tuned import (
    ARCHITECTURES,
    ATTENTION_ROW_TILES,
    AttentionTuned,
    Tuned,
    architecture_of,
)
from tspec.kernels.cuda.tuned_checks import BLOCKS_N, WARPS
from tspec.kernels.tuned_ops import is_head

BLOCKS_K = (32, 64, 128, 256)
SPLITS_K = (1, 2, 4, 8)
STAGES = (2, 3, 4, 5, 6)
ATTENTION_WARPS = (4, 8)
ATTENTION_STAGES = (1, 2, 3, 4)


def product_space(op: str, arch: str) -> Iterator[Tuned]:
    """Every configuration of a product on an NVIDIA part, those that are not legal among them."""
    card = ARCHITECTURES[architecture_of(arch)]
    splits = SPLITS_K if card.can_split_k and not is_head(op) else SPLITS_K[:1]
    for numbers in product(BLOCKS_N, BLOCKS_K, splits, WARPS[card.name], STAGES):
        yield Tuned(*numbers)


def attention_space() -> Iterator[AttentionTuned]:
    """Every configuration of attention on an NVIDIA part, those that are not legal among them."""
    for row_tile, num_warps, num_stages in product(ATTENTION_ROW_TILES, ATTENTION_WARPS, ATTENTION_STAGES):
        yield AttentionTuned(row_tile=row_tile, num_warps=num_warps, num_stages=num_stages)
