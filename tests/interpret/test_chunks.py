"""Chunks lie at absolute places, and offsets into large caches are computed in 64 bits.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_chunks.py
"""

from itertools import pairwise

import pytest
import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.attention_tile import tile_offset
from tspec.kernels.cuda.chunks import CHUNKS_AN_OCTAVE, chunk_start, count_chunks, count_octaves, max_chunks
from tspec.kernels.cuda.kv_commit import _slot_offset


@triton.jit
def _starts(out_ptr, CHUNK_TILES: tl.constexpr):
    chunk = tl.program_id(0)
    tl.store(out_ptr + chunk, chunk_start(chunk, CHUNK_TILES))


@triton.jit
def _counts(out_ptr, tiles_ptr, CHUNK_TILES: tl.constexpr, OCTAVES: tl.constexpr):
    place = tl.program_id(0)
    tl.store(out_ptr + place, count_chunks(tl.load(tiles_ptr + place), CHUNK_TILES, OCTAVES))


@triton.jit
def _offsets(out_ptr, table_ptr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr):
    tl.store(out_ptr, tile_offset(tl.load(table_ptr), HEADS - 1, HEADS, HEAD_DIM))
    slot = tl.arange(0, 16)
    offset = _slot_offset(table_ptr, slot, slot >= 0, HEADS, HEAD_DIM)
    tl.store(out_ptr + 1, tl.max(offset, axis=0))


def starts(chunk_tiles: int, count: int) -> list[int]:
    out = torch.zeros(count, dtype=torch.int32)
    _starts[(count,)](out, CHUNK_TILES=chunk_tiles)
    return out.tolist()


@pytest.mark.parametrize("chunk_tiles", [1, 4, 8])
def test_chunks_are_equal_at_first_and_double_in_width_every_octave(chunk_tiles):
    found = starts(chunk_tiles, 6 * CHUNKS_AN_OCTAVE + 1)
    widths = [end - start for start, end in pairwise(found)]
    octaves = [0, 0, 1, 2, 3, 4]
    assert widths == [chunk_tiles << octave for octave in octaves for _ in range(CHUNKS_AN_OCTAVE)]


def test_4_ki_tokens_are_16_chunks_and_128_ki_are_96():
    assert [max_chunks(tokens // 64, 4) for tokens in (64, 256, 320, 4096, 8192, 131072)] == [
        1,
        1,
        2,
        16,
        32,
        96,
    ]


@pytest.mark.parametrize("chunk_tiles", [1, 4])
def test_the_number_of_chunks_is_that_of_the_starts_below_whatever_the_longest_context(chunk_tiles):
    tiles = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500, 1024, 2047, 2048]
    every = starts(chunk_tiles, 16 * CHUNKS_AN_OCTAVE)
    expected = [sum(start < each for start in every) for each in tiles]
    out = torch.zeros(len(tiles), dtype=torch.int32)
    _counts[(len(tiles),)](
        out,
        torch.tensor(tiles, dtype=torch.int32),
        CHUNK_TILES=chunk_tiles,
        OCTAVES=count_octaves(2048, chunk_tiles),
    )
    assert out.tolist() == expected == [max_chunks(each, chunk_tiles) for each in tiles]


def test_offsets_past_two_to_the_31_do_not_wrap():
    table = torch.tensor([300_000], dtype=torch.int32)
    out = torch.zeros(2, dtype=torch.int64)
    _offsets[(1,)](out, table, HEADS=8, HEAD_DIM=128)
    assert out.tolist() == [(300_000 * 8 + 7) * 64 * 128, 300_000 * 8 * 64 * 128 + 15 * 128]
    assert out.min() > 1 << 33
