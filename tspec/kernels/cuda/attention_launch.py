"""How attention is launched: its grid, constants and scratch. Plain numbers; launches nothing.

The ahead-of-time tests compile from the same functions, so what they compile is what runs.
"""

from dataclasses import dataclass
from typing import Any

import triton

from tspec.kernels.cuda.chunks import count_octaves, max_chunks
from tspec.kernels.cuda.launch import ScratchBytes
from tspec.kernels.cuda.tuned import AttentionTuned


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

    def constexprs(
        self, tuned: AttentionTuned, window: int | None, first_slot: int, launch_pdl: bool
    ) -> dict[str, Any]:
        """Compile-time arguments: those of the model, and the row tile. None follows the bucket but by it."""
        return {
            "HEADS": self.num_heads,
            "KV_HEADS": self.num_kv_heads,
            "HEAD_DIM": self.head_dim,
            "HALF": padded(self.head_dim // 2),
            "DIMS": padded(self.head_dim),
            "WINDOW": window or 0,
            "FIRST_SLOT": first_slot,
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
