"""What a configuration from outside must be before a kernel runs with it: legal, inside the part, and row-independent.

Shared memory is bounded from above, not read from a binary: what passes fits. Registers are not bounded; too many
spill, which costs time and no bits. Compiles nothing.
"""

from tspec.core.dtypes import DType
from tspec.core.errors import ContractError
from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cuda.tuned import (
    ALIGNED_COLUMNS,
    ARCHITECTURES,
    ATTENTION_ROW_TILES,
    MAX_SPLIT_K,
    NO_SM,
    PAIRED_KERNELS,
    Architecture,
    AttentionTuned,
    Tuned,
    architecture_of,
    keeps_order_of_squares,
)
from tspec.kernels.tuned_ops import is_head

TALLEST_TILE = 64
"""Rows of the largest tile of a product, and of a tile of float32."""

BLOCKS_N = (64, 128)
"""Outputs of a program: a warp group's instruction has 64 rows, and tiles of all heights have to run on one family."""

WARPS = {"sm_80": (4, 8), "sm_90": (4, 8), "sm_100": (4,), "gfx942": (2, 4)}
"""Warps of a product's program, twice as many in the tallest tile of rows: what all tiles run one instruction with.

Of 16 warps Triton makes no tcgen05 product for sm_100, as seen in its code.
"""

MAX_STAGES = 8
MAX_CHUNK_TILES = 32
_LEAST_BLOCK_K = 16
_MOST_BLOCK_K = 256


def check_product(op: str, n: int, k: int, dtype: DType, arch: str, tuned: Tuned) -> None:
    """Hold `tuned` against kernel or tuning op `op` with weights [n, k] on `arch`.

    Errors   ContractError naming the number that is not legal
    """
    card = ARCHITECTURES[architecture_of(arch)]
    is_amd = card.name == NO_SM
    most_splits = MAX_SPLIT_K if card.can_split_k and not is_head(op) else 1
    _check_choice(op, "block_n", tuned.block_n, BLOCKS_N)
    _check_choice(op, "block_k", tuned.block_k, _powers_of_two(_LEAST_BLOCK_K, _MOST_BLOCK_K))
    _check_choice(op, "split_k", tuned.split_k, _powers_of_two(1, most_splits))
    _check_choice(op, "num_warps", tuned.num_warps, WARPS[card.name])
    _check_choice(op, "num_stages", tuned.num_stages, range(1, MAX_STAGES + 1))
    _check_choice(op, "matrix_side", tuned.matrix_side, (16 if is_amd else None,))
    _require(op, "steps of K", -(-k // tuned.block_k), tuned.split_k, "at least one a split")
    sums_squares = op.startswith("norm_") or is_head(op)
    has_vectors = dtype is not DType.FLOAT32 and k % ALIGNED_COLUMNS == 0
    if sums_squares and has_vectors and not keeps_order_of_squares(tuned, arch):
        raise ContractError(
            f"num_warps and block_k of {op}",
            got=f"{tuned.num_warps} and {tuned.block_k}",
            need="a run of squares a thread in the least tile of rows",
            fix=_FIX,
        )
    _check_shared(op, product_shared_bytes(op, dtype, card, tuned), card)


def check_attention(op: str, head_dim: int, dtype: DType, arch: str, tuned: AttentionTuned) -> None:
    """Hold `tuned` against attention of heads of `head_dim` on `arch`.

    Errors   ContractError naming the number that is not legal
    """
    card = ARCHITECTURES[architecture_of(arch)]
    is_amd = card.name == NO_SM
    tiles = ATTENTION_ROW_TILES[:1] if is_amd else ATTENTION_ROW_TILES
    _check_choice(op, "chunk_tiles", tuned.chunk_tiles, _powers_of_two(1, MAX_CHUNK_TILES))
    _check_choice(op, "row_tile", tuned.row_tile, tiles)
    _check_choice(op, "num_warps", tuned.num_warps, (4,) if is_amd else (4, 8))
    _check_choice(op, "num_stages", tuned.num_stages, range(1, MAX_STAGES + 1))
    _check_choice(op, "matrix_side", tuned.matrix_side, (16 if is_amd else None,))
    _check_shared(op, attention_shared_bytes(head_dim, dtype, card, tuned), card)


def product_shared_bytes(op: str, dtype: DType, card: Architecture, tuned: Tuned) -> int:
    """Most shared memory of a program of a product: the steps in flight, or its sums when they change layout."""
    width = tuned.block_n * (2 if op in PAIRED_KERNELS else 1)
    row = tuned.block_k * dtype.itemsize_bytes
    step = (width + TALLEST_TILE) * row + 4 * tuned.block_k  # weights, rows, norm
    return max(max(_stages_held(card, tuned.num_stages), 1) * step, 4 * width * TALLEST_TILE)


def attention_shared_bytes(head_dim: int, dtype: DType, card: Architecture, tuned: AttentionTuned) -> int:
    """Most shared memory of a program of attention: keys and values in flight, queries, weights of the softmax."""
    dims = 16
    while dims < head_dim:
        dims *= 2
    tile = BLOCK_TOKENS * dims * dtype.itemsize_bytes
    rows = tuned.row_tile * (dims + BLOCK_TOKENS) * dtype.itemsize_bytes
    least_tiles = 1 if card.name == NO_SM else 2
    return max(2 * _stages_held(card, tuned.num_stages), least_tiles) * tile + rows + _EXTRA_BYTES


_EXTRA_BYTES = 2048
"""Barriers of the pipeline, and what warps exchange in a reduction."""

_FIX = "Tune it again, or remove the entry."


def _stages_held(card: Architecture, num_stages: int) -> int:
    """Steps that lie in shared memory at once: before sm_90 and on AMD the newest is still on its way to registers."""
    return num_stages if card.name in ("sm_90", "sm_100") else num_stages - 1


def _powers_of_two(least: int, most: int) -> tuple[int, ...]:
    return tuple(1 << power for power in range(least.bit_length() - 1, most.bit_length()))


def _check_choice(op: str, name: str, value: int | None, choices: tuple[int | None, ...] | range) -> None:
    if value not in choices:
        shown = (
            f"{choices[0]} to {choices[-1]}" if isinstance(choices, range) else ", ".join(map(str, choices))
        )
        raise ContractError(f"{name} of {op}", got=value, need=f"one of {shown}", fix=_FIX)


def _require(op: str, name: str, value: int, least: int, need: str) -> None:
    if value < least:
        raise ContractError(f"{name} of {op}", got=value, need=need, fix=_FIX)


def _check_shared(op: str, shared_bytes: int, card: Architecture) -> None:
    if shared_bytes > card.shared_bytes:
        raise ContractError(
            f"shared memory of {op}", got=f"up to {shared_bytes} B", need=f"{card.shared_bytes} B", fix=_FIX
        )
