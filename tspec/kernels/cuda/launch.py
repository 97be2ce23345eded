"""From operands and a configuration to one launch: grid, constants, options, sizes of scratch, and the checks.

The ahead-of-time tests compile from the same functions, so what they compile is what runs. Launches nothing.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton

from tspec.core.errors import ContractError
from tspec.kernels.cuda.tuned import PAIRED_KERNELS, Tuned

ROW_TILES = (16, 32, 64)
"""Rows of a program's tile: the least that holds them all, else the largest."""

FLOAT32_ROW_TILES = (16,)
"""Without tensor cores the operands of a product lie in registers, and taller tiles would spill."""

PREFETCHED_STEPS = 4
"""Steps of weights that a program brings into L2 before it waits for the launch before it."""

SAMPLING_HEADS = ("head_sample", "norm_head_sample")
"""Kernels that write the best of each block of the vocabulary."""

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_FIX = "Check the lowering that made this launch."


class Scratch(NamedTuple):
    """Static memory of the kernels: `partials` float32, `counters` int32, all 0 before the first launch."""

    partials: torch.Tensor | None = None
    counters: torch.Tensor | None = None


NO_SCRATCH = Scratch()
"""For launches that need none: no split of K, no head."""


class ScratchBytes(NamedTuple):
    """What a launch needs of each piece of Scratch. Launches that follow one another may share one."""

    partials: int
    counters: int


@dataclass(frozen=True, slots=True)
class LinearLaunch:
    """One launch of the linear kernel."""

    grid: tuple[int, int, int]
    rows: int
    n: int
    k: int
    constexprs: dict[str, Any]
    options: dict[str, Any]


def row_tile(rows: int, dtype: torch.dtype) -> int:
    """The tile that `rows` rows of `dtype` run in."""
    tiles = FLOAT32_ROW_TILES if dtype == torch.float32 else ROW_TILES
    return next((tile for tile in tiles if rows <= tile), tiles[-1])


def plan_linear(
    kind: str, epilogue: int, rows: int, n: int, k: int, dtype: torch.dtype, tuned: Tuned, launch_pdl: bool
) -> LinearLaunch:
    """The launch of `kind` for `rows` rows. Only the tile of rows, the grid and the cache policy follow rows.

    Errors: ContractError where a step of `tuned` holds less than one run of squares.
    """
    if tuned.block_k < 16 or tuned.block_n < 16:
        raise ContractError(
            f"configuration of {kind}", got=tuned, need="block_n and block_k of at least 16", fix=_FIX
        )
    m_tile = row_tile(rows, dtype)
    grid = (triton.cdiv(rows, m_tile), triton.cdiv(n, tuned.block_n), tuned.split_k)
    constexprs = {
        "EPILOGUE": int(epilogue),
        "M_TILE": m_tile,
        "BLOCK_N": tuned.block_n,
        "BLOCK_K": tuned.block_k,
        "SPLIT_K": tuned.split_k,
        "EVEN_K": k % tuned.block_k == 0,
        "POLICY": "evict_first" if grid[0] == 1 else "",
        "USE_PDL": launch_pdl,
        "AHEAD": tuned.block_k * PREFETCHED_STEPS,
    }
    return LinearLaunch(grid, rows, n, k, constexprs, launch_options(tuned, m_tile, launch_pdl))


def launch_options(tuned: Tuned, m_tile: int, launch_pdl: bool) -> dict[str, Any]:
    """Options of the compiler and the launcher. Fusing a product and a sum into one rounding is off.

    The tallest tile runs with twice the warps: registers a thread stay few. A sum's order does not follow warps.
    """
    options: dict[str, Any] = {
        "num_warps": tuned.num_warps * (2 if m_tile == ROW_TILES[-1] else 1),
        "num_stages": tuned.num_stages,
        "enable_fp_fusion": False,
    }
    if tuned.matrix_side is not None:
        options["matrix_instr_nonkdim"] = tuned.matrix_side
    if launch_pdl:
        options["launch_pdl"] = True
    return options


def scratch_bytes(kind: str, rows: int, n: int, dtype: torch.dtype, tuned: Tuned) -> ScratchBytes:
    """Bytes of `partials` and `counters` that `kind` needs for `rows` rows of `dtype` and `n` outputs."""
    m_tile = row_tile(rows, dtype)
    blocks = triton.cdiv(n, tuned.block_n)
    tiles = triton.cdiv(rows, m_tile) * blocks
    has_norm = kind.startswith("norm_")
    slot = ((2 if kind in PAIRED_KERNELS else 1) * tuned.block_n + has_norm) * m_tile
    is_split = tuned.split_k > 1
    sums = tiles * tuned.split_k * slot if is_split else 0
    bests = best_floats(rows, blocks) if kind in SAMPLING_HEADS else 0
    return ScratchBytes(4 * (sums + bests), 4 * tiles if is_split else 0)


def best_floats(rows: int, blocks: int) -> int:
    """Numbers of `partials` that the best value and token of `rows` rows and `blocks` blocks of V take."""
    return 2 * rows * blocks


def check_tensors(kind: str, tensors: dict[str, tuple[torch.Tensor | None, tuple, torch.dtype]]) -> None:
    """Hold each tensor against (tensor, shape, dtype); None is an operand that is left out.

    Errors: ContractError for another shape, dtype or layout, and for rows that are no float.
    """
    for name, (tensor, shape, dtype) in tensors.items():
        if tensor is None:
            continue
        is_right = tuple(tensor.shape) == shape and tensor.dtype == dtype and tensor.is_contiguous()
        if not is_right or (name == "x" and dtype not in _DTYPES):
            layout = "contiguous" if tensor.is_contiguous() else "strided"
            raise ContractError(
                f"{name} of {kind}",
                got=f"{layout} {list(tensor.shape)} {tensor.dtype}",
                need=f"contiguous {list(shape)} {dtype if dtype in _DTYPES or name != 'x' else 'float'}",
                fix=_FIX,
            )


def check_scratch(
    kind: str, scratch: Scratch, rows: int, n: int, dtype: torch.dtype, tuned: Tuned
) -> ScratchBytes:
    """Hold `scratch` against what the launch needs, and return that.

    Errors: ContractError for too little of either piece.
    """
    need = scratch_bytes(kind, rows, n, dtype, tuned)
    hold_scratch(kind, scratch, need)
    return need


def hold_scratch(kind: str, scratch: Scratch, need: ScratchBytes) -> None:
    """Errors: ContractError where `scratch` has less than `need` of either piece."""
    for name, tensor, kept_as, need_bytes in (
        ("partials", scratch.partials, torch.float32, need.partials),
        ("counters", scratch.counters, torch.int32, need.counters),
    ):
        has_bytes = 0 if tensor is None or tensor.dtype != kept_as else 4 * tensor.numel()
        if has_bytes < need_bytes:
            raise ContractError(
                f"{name} of {kind}",
                got=f"{has_bytes} bytes of {kept_as}",
                need=f"{need_bytes} bytes",
                fix="Size the scratch with scratch_bytes.",
            )
