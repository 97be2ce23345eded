"""Where attention cuts its keys: chunks of tiles at absolute places, the same for every batch, tree and length.

A tile is one KV block. The first 32 chunks hold CHUNK_TILES tiles each; then every 16 chunks double in width, so
that a context of 128 Ki tokens has 96 chunks and one of 4 Ki has 16. A place depends on the tile alone, never on how
long the sequence is or how many rows ask: partial sums, and so bits, are those of plain decoding.
"""

import triton
import triton.language as tl

from tspec.core.shapes import BLOCK_TOKENS

CHUNKS_AN_OCTAVE = 16
"""Chunks between two doublings of their width."""

_TILE = tl.constexpr(BLOCK_TOKENS)
_OCTAVE = tl.constexpr(CHUNKS_AN_OCTAVE)


def count_octaves(tiles: int, chunk_tiles: int) -> int:
    """Return how many doublings `count_chunks` has to look at for a context of up to `tiles`."""
    octaves = 0
    while (CHUNKS_AN_OCTAVE * chunk_tiles) << octaves < tiles:
        octaves += 1
    return octaves


def max_chunks(tiles: int, chunk_tiles: int) -> int:
    """Return how many chunks a context of `tiles` reaches into."""
    chunks = min(-(-tiles // chunk_tiles), CHUNKS_AN_OCTAVE)
    for octave in range(count_octaves(tiles, chunk_tiles)):
        width = chunk_tiles << octave
        chunks += min(max(-(-(tiles - CHUNKS_AN_OCTAVE * width) // width), 0), CHUNKS_AN_OCTAVE)
    return chunks


@triton.jit
def chunk_start(chunk, CHUNK_TILES: tl.constexpr):
    """First tile of a chunk; its end is the start of the next."""
    octave = tl.maximum(chunk // _OCTAVE - 1, 0)
    return tl.where(chunk < _OCTAVE, chunk, (_OCTAVE + chunk % _OCTAVE) << octave) * CHUNK_TILES


@triton.jit
def count_chunks(tiles, CHUNK_TILES: tl.constexpr, OCTAVES: tl.constexpr):
    """`max_chunks` on the device."""
    chunks = tl.minimum((tiles + CHUNK_TILES - 1) // CHUNK_TILES, _OCTAVE)
    for octave in tl.static_range(OCTAVES):
        width = CHUNK_TILES << octave
        beyond = tl.maximum(tiles - _OCTAVE * width, 0)
        chunks += tl.minimum((beyond + width - 1) // width, _OCTAVE)
    return chunks


@triton.jit
def live_tiles(chunk, prefix, slots, CHUNK_TILES: tl.constexpr, OCTAVES: tl.constexpr, WINDOW: tl.constexpr):
    """Tiles [start, end) of a chunk that some node sees, and the chunks [first, end) that have such tiles.

    `slots` are those of the prefix and of all nodes.
    """
    end_tile = (slots + _TILE - 1) // _TILE
    first_tile = tl.maximum(prefix - WINDOW + 1, 0) // _TILE if WINDOW > 0 else 0
    start = tl.maximum(chunk_start(chunk, CHUNK_TILES), first_tile)
    end = tl.minimum(chunk_start(chunk + 1, CHUNK_TILES), end_tile)
    first_chunk = count_chunks(first_tile + 1, CHUNK_TILES, OCTAVES) - 1
    return start, end, first_chunk, count_chunks(end_tile, CHUNK_TILES, OCTAVES)
