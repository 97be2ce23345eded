"""How attention is launched: its configurations, grid, constants and scratch. Plain numbers; launches nothing.

The ahead-of-time tests compile from the same functions, so what they compile is what runs.
"""

from dataclasses import dataclass
from typing import Any

import triton

from tspec.kernels.cuda.chunks import count_octaves, max_chunks
from tspec.kernels.cuda.launch import ScratchBytes
from tspec.kernels.cuda.tuned import architecture_of


@dataclass(frozen=True, slots=True)
class AttentionTuned:
    """One configuration of attention.

    chunk_tiles  KV blocks of one chunk, before chunks widen: fixes bits, so it is one number a model
    row_tile     query rows of one program: 16, 32 or 64; more rows take more programs
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
class AttentionShape:
    """What a model and a bucket say of attention."""

    batch: int
    nodes: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_blocks: int

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.num_heads // self.num_kv_heads

    def row_tiles(self, tuned: AttentionTuned) -> int:
        """Programs that share the rows of one KV head."""
        return -(-self.nodes * self.group // tuned.row_tile)

    def grid(self, tuned: AttentionTuned) -> tuple[int, int, int]:
        """Row tiles side by side, so that those of one KV head find its tiles in L2; the widest chunks first."""
        shares = self.num_kv_heads * self.row_tiles(tuned)
        return shares, max_chunks(self.max_blocks, tuned.chunk_tiles), self.batch

    def scratch_bytes(self, tuned: AttentionTuned) -> ScratchBytes:
        """Bytes of partials and counters. Layers that follow one another share them."""
        shares, chunks, batch = self.grid(tuned)
        slot = (padded(self.head_dim) + 2) * tuned.row_tile
        return ScratchBytes(4 * batch * shares * chunks * slot, 4 * batch * shares)

    def constexprs(self, tuned: AttentionTuned, window: int | None, launch_pdl: bool) -> dict[str, Any]:
        """Compile-time arguments: those of the model, and the row tile. None follows the bucket but by it."""
        return {
            "HEADS": self.num_heads,
            "KV_HEADS": self.num_kv_heads,
            "HEAD_DIM": self.head_dim,
            "HALF": padded(self.head_dim // 2),
            "DIMS": padded(self.head_dim),
            "WINDOW": window or 0,
            "CHUNK_TILES": tuned.chunk_tiles,
            "OCTAVES": count_octaves(self.max_blocks, tuned.chunk_tiles),
            "ROWS": tuned.row_tile,
            "USE_PDL": launch_pdl,
        }


def padded(dims: int) -> int:
    """The power of two that holds `dims`: at least 16, the least side of a product."""
    return max(16, triton.next_power_of_2(dims))


def launch_options(tuned: AttentionTuned, launch_pdl: bool) -> dict[str, Any]:
    """Options of the compiler and the launcher. Fusing a product and a sum into one rounding is off."""
    options: dict[str, Any] = {
        "num_warps": tuned.num_warps,
        "num_stages": tuned.num_stages,
        "enable_fp_fusion": False,
    }
    if tuned.matrix_side is not None:
        options["matrix_instr_nonkdim"] = tuned.matrix_side
    if launch_pdl:
        options["launch_pdl"] = True
    return options


def default_attention_tuned(head_dim: int, rows: int, arch: str) -> AttentionTuned:
    """The safe default for `rows` query rows a KV head (nodes times query heads a KV head) on `arch`.

    Warps follow the model alone: then the slots of a score tile lie in the same threads for 16 and 32 rows, and the
    sum over slots has one order (gfx942 would lay 32 rows out otherwise, so it has one row tile). Taller row tiles
    spill or take twice the warps; two tiles of 32 rows share their reads in L2 and join their chunks side by side.
    """
    part = architecture_of(arch)
    is_wide = head_dim > 128
    if part == "gfx942":
        return AttentionTuned(4, 16, 4, 1 if is_wide else 2, matrix_side=16)
    if part == "sm_80":
        row_tile = 16 if rows <= 16 or is_wide else 32
        return AttentionTuned(4, row_tile, 8 if head_dim > 64 else 4, 2 if is_wide else 3)
    return AttentionTuned(4, 16 if rows <= 16 else 32, 8 if is_wide else 4, 2 if is_wide else 3)
