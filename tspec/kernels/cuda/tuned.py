"""Launch configurations: what a kernel of this package may be tuned in, and safe defaults for each architecture.

Plain data: imports neither torch nor triton, reads no file. The key never contains rows, nodes or the bucket, because
another tile of K or another split is another order of summation: a row's bits would depend on the bucket.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tspec.core.dtypes import DType
from tspec.core.errors import ConfigError
from tspec.kernels.tuned_ops import is_head, tuning_op


@dataclass(frozen=True, slots=True)
class Tuned:
    """One configuration of the linear kernels.

    block_n     outputs of a program, the tall side of its dot
    block_k     columns of the weights of one step
    split_k     programs that share the sum of an output
    num_warps   warps of a program
    num_stages  steps of weights in flight
    matrix_side rows of AMD's matrix instruction, the same for each tile of rows; None on other parts
    """

    block_n: int
    block_k: int
    split_k: int
    num_warps: int
    num_stages: int
    matrix_side: int | None = None


@dataclass(frozen=True, slots=True)
class AttentionTuned:
    """One configuration of attention.

    chunk_tiles  KV blocks of one chunk, before chunks widen: fixes bits, so it is one number a model
    row_tile     query rows of one program at most: 16, 32 or 64; more rows take more programs
    num_warps    warps of a program
    num_stages   tiles of keys and values in flight
    matrix_side  rows of AMD's matrix instruction, the same for each row tile; None on other parts
    """

    chunk_tiles: int = 4
    row_tile: int = 16
    num_warps: int = 4
    num_stages: int = 3
    matrix_side: int | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the defaults need to know of a part: its multiprocessors and the shared memory of a program."""

    name: str
    num_multiprocessors: int
    shared_bytes: int
    can_split_k: bool
    lanes: int = 32


ARCHITECTURES = {
    each.name: each
    for each in (
        Architecture("sm_80", 108, 99 * 1024, True),
        Architecture("sm_90", 132, 227 * 1024, True),
        Architecture("sm_100", 148, 227 * 1024, True),
        Architecture("gfx942", 304, 64 * 1024, False, lanes=64),
    )
}
"""By name. sm_80 keeps to the 99 KiB of sm_86, sm_89 and sm_120, which take its defaults. gfx942 does not split K:
what the last program to arrive sees there of the others' sums has been seen on no device yet."""

SMALL_BLACKWELL = 120
"""From this compute capability on, shared memory is that of sm_86 (CUDA programming guide, compute capabilities)."""

FIRST_EARLY_LAUNCH = 90
"""From this compute capability on there is programmatic dependent launch."""

NO_SM = "gfx942"
"""The one part that is not NVIDIA's."""

PAIRED_KERNELS = ("linear_silu_mul", "norm_linear_silu_mul")
"""Kernels whose programs stream two tiles of weights at once."""

ATTENTION_ROW_TILES = (16, 32, 64)
"""Query rows that a program of attention may hold."""

BLOCK_N = 64
"""The tall side of every default: the 64 rows of a warp group's instruction."""

ALIGNED_COLUMNS = 16
"""Where K is no multiple of this, weights are loaded one by one through registers: short steps keep those few."""

LARGE_SHARED_BYTES = 200 * 1024
"""From here on, four steps of 128 columns fit a program with 64 rows."""

MAX_SPLIT_K = 8
"""Splits of K that a default or a configuration from outside may have."""

_LEAST_STEPS = 4
"""A program that streams fewer steps than this spends its time starting up."""


def architecture_of(name: str) -> str:
    """The architecture whose defaults a part of `name` runs with: the newest that is not newer, or itself.

    sm_120 and up, cards of the newest generation without its large shared memory and warp-group products, count as
    sm_80. Errors: ConfigError for a part that no kernel is compiled for.
    """
    if name in ARCHITECTURES:
        return name
    number = _sm_number(name)
    if number >= SMALL_BLACKWELL:
        return "sm_80"
    older = [each for each in ARCHITECTURES if 0 < _sm_number(each) <= number]
    if not older:
        raise ConfigError(
            "device", got=name, need=f"sm_80 or newer, or {NO_SM}", fix="Use device='cpu' on this machine."
        )
    return max(older, key=_sm_number)


def can_launch_early(name: str) -> bool:
    """Whether a kernel on a part of `name` may start before the one before it ends (PDL: compute capability 9.0)."""
    return _sm_number(name) >= FIRST_EARLY_LAUNCH


def _sm_number(name: str) -> int:
    """90 of "sm_90a"; 0 of a part that is not NVIDIA's."""
    digits = name.removeprefix("sm_").rstrip("af")
    return int(digits) if name.startswith("sm_") and digits.isdigit() else 0


def default_tuned(kernel: str, n: int, k: int, dtype: DType, arch: str) -> Tuned:
    """The safe default for `kernel` with weights [n, k] (each of gate and up: [n, k]) on `arch`."""
    card = ARCHITECTURES[architecture_of(arch)]
    is_amd = card.name == NO_SM
    if dtype is DType.FLOAT32:
        block_k, num_stages = 16, 3
    elif k % ALIGNED_COLUMNS:
        block_k, num_stages = 32, 3
    elif card.shared_bytes < LARGE_SHARED_BYTES:
        block_k, num_stages = 64, 2 if is_amd else 4
    elif k % 128 == 0:
        block_k, num_stages = 128, 3 if kernel in PAIRED_KERNELS else 4
    else:
        block_k, num_stages = 64, 5
    split_k = 1 if is_head(kernel) else _split(n, k, BLOCK_N, block_k, card)
    num_warps = 2 if is_amd else 4
    return Tuned(BLOCK_N, block_k, split_k, num_warps, num_stages, 16 if is_amd else None)


def default_attention_tuned(head_dim: int, rows: int, dtype: DType, arch: str) -> AttentionTuned:
    """The safe default for `rows` query rows a KV head (nodes times query heads a KV head) on `arch`.

    Warps follow the model alone: then the slots of a score tile lie in the same threads for 16 and 32 rows, and the
    sum over slots has one order (gfx942 would lay 32 rows out otherwise, so it has one row tile). Taller row tiles
    spill or take twice the warps; two tiles of 32 rows share their reads in L2 and join their chunks side by side.
    float32 has products without tensor cores and tiles of twice the size: it fits, and spills past 64 dims a head.
    """
    part = architecture_of(arch)
    is_wide = head_dim > 128
    if dtype is DType.FLOAT32:
        has_one_stage = is_wide or (part == NO_SM and head_dim > 64)
        num_warps = 8 if head_dim > 64 and part != NO_SM else 4
        return AttentionTuned(4, 16, num_warps, 1 if has_one_stage else 2, 16 if part == NO_SM else None)
    if part == NO_SM:
        return AttentionTuned(4, 16, 4, 1 if is_wide else 2, matrix_side=16)
    row_tile = 16 if rows <= 16 or (is_wide and part != "sm_100") else 32
    num_warps = 8 if is_wide or (part == "sm_80" and head_dim > 64) else 4
    return AttentionTuned(4, row_tile, num_warps, 2 if is_wide else 3)


@dataclass(frozen=True, slots=True)
class TunedTable:
    """What tuning found for one part, and the defaults for everything else.

    products   by (tuning_op, N, K, dtype of the weights); N of gate and up is that of each
    attention  by (query heads, KV heads, head dim, dtype of the caches)
    """

    products: Mapping[tuple[str, int, int, DType], Tuned] = field(default_factory=dict)
    attention: Mapping[tuple[int, int, int, DType], AttentionTuned] = field(default_factory=dict)

    def for_product(self, kernel: str, n: int, k: int, dtype: DType, arch: str) -> Tuned:
        """The configuration of `kernel` with weights [n, k]."""
        found = self.products.get((tuning_op(kernel), n, k, dtype))
        return default_tuned(kernel, n, k, dtype, arch) if found is None else found

    def for_attention(
        self, num_heads: int, num_kv_heads: int, head_dim: int, dtype: DType, nodes: int, arch: str
    ) -> AttentionTuned:
        """The configuration of attention for up to `nodes` nodes a sequence, in the least row tile that holds them.

        Row tiles do not show in the bits, so they alone may follow the bucket.
        """
        rows = nodes * (num_heads // num_kv_heads)
        found = self.attention.get((num_heads, num_kv_heads, head_dim, dtype))
        if found is None:
            return default_attention_tuned(head_dim, rows, dtype, arch)
        tile = next(each for each in ATTENTION_ROW_TILES if rows <= each or each == found.row_tile)
        return replace(found, row_tile=tile)


def keeps_order_of_squares(tuned: Tuned, arch: str) -> bool:
    """Whether the least tile of rows gives each thread a run of 8 columns, as taller tiles do.

    Else the compiler spreads that tile's rows over more lanes, and a norm's sum of squares has another order there:
    16-bit rows would not be independent. Every configuration that a search may choose has to pass.
    """
    lanes = ARCHITECTURES[architecture_of(arch)].lanes
    return 16 * tuned.block_k >= 8 * lanes * tuned.num_warps


def _split(n: int, k: int, block_n: int, block_k: int, card: Architecture) -> int:
    """The smallest power of two that gives every multiprocessor about two programs with enough steps each."""
    split_k = 1
    while (
        card.can_split_k
        and split_k < MAX_SPLIT_K
        and -(-n // block_n) * split_k * 2 <= 3 * card.num_multiprocessors
        and -(-k // block_k) >= 2 * split_k * _LEAST_STEPS
    ):
        split_k *= 2
    return split_k
