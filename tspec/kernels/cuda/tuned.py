"""Launch configurations: what a kernel of this package may be tuned in, and safe defaults for each architecture.

Plain data: imports neither torch nor triton. The key never contains rows, nodes or the bucket, because another
tile of K or another split is another order of summation: a row's bits would depend on the bucket.
"""

from dataclasses import dataclass

from tspec.core.dtypes import DType


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
"""By name. sm_80 keeps to the 99 KiB of sm_86 and sm_89, which run its code. gfx942 does not split K: what the
last program to arrive sees there of the others' sums has been seen on no device yet."""

PAIRED_KERNELS = ("norm_linear_silu_mul",)
"""Kernels whose programs stream two tiles of weights at once."""

KERNELS = ("linear", "linear_add", "norm_linear", "norm_linear_silu_mul", "norm_head_argmax")

BLOCK_N = 64
"""The tall side of every default: the 64 rows of a warp group's instruction."""

ALIGNED_COLUMNS = 16
"""Where K is no multiple of this, weights are loaded one by one through registers: short steps keep those few."""

LARGE_SHARED_BYTES = 200 * 1024
"""From here on, four steps of 128 columns fit a program with 64 rows."""

_MAX_SPLIT_K = 8
_LEAST_STEPS = 4
"""A program that streams fewer steps than this spends its time starting up."""


def architecture_of(name: str) -> str:
    """The architecture whose defaults a part of `name` runs with: the newest that is not newer, or itself."""
    if name in ARCHITECTURES or not name.startswith("sm_"):
        return name
    number = int(name.removeprefix("sm_").rstrip("af"))
    older = [each for each in ARCHITECTURES if each.startswith("sm_") and int(each[3:]) <= number]
    return max(older, key=lambda each: int(each[3:]), default=name)


def default_tuned(kernel: str, n: int, k: int, dtype: DType, arch: str) -> Tuned:
    """The safe default for `kernel` with weights [n, k] (each of gate and up: [n, k]) on `arch`."""
    card = ARCHITECTURES[architecture_of(arch)]
    is_amd = card.name == "gfx942"
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
    split_k = 1 if kernel == "norm_head_argmax" else _split(n, k, BLOCK_N, block_k, card)
    num_warps = 2 if is_amd else 4
    return Tuned(BLOCK_N, block_k, split_k, num_warps, num_stages, 16 if is_amd else None)


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
        and split_k < _MAX_SPLIT_K
        and -(-n // block_n) * split_k * 2 <= 3 * card.num_multiprocessors
        and -(-k // block_k) >= 2 * split_k * _LEAST_STEPS
    ):
        split_k *= 2
    return split_k
