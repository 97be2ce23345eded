"""Noise of the kernels: the very bits of the definition, and float32 numbers close to it where it decides.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_noise.py
"""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tspec.core import noise
from tspec.kernels.cuda.noise import gumbel, gumbel_of, random_words, uniform

POSITIONS = torch.tensor([0, 1, 4095, 2**31 - 1], dtype=torch.int32)
SEEDS = torch.tensor([0, 1, 2**33 + 5, 2**63 - 1])
STREAMS = (noise.TARGET, noise.DRAFT, noise.ACCEPT, noise.RESIDUAL, noise.draft_stream(7))


@triton.jit
def _draw(
    words_ptr, gumbel_ptr, uniform_ptr, seed_ptr, position_ptr, first_token, stream,
    TOKENS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, token = tl.arange(0, ROWS), tl.arange(0, TOKENS)
    seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
    quad = first_token // 4 + tl.arange(0, TOKENS // 4)
    w0, w1, w2, w3 = random_words(seed[None, :], position[None, :], quad[:, None], stream)
    place = 4 * tl.arange(0, TOKENS // 4)[:, None] * ROWS + row[None, :]
    tl.store(words_ptr + place, w0.to(tl.int32, bitcast=True))
    tl.store(words_ptr + place + ROWS, w1.to(tl.int32, bitcast=True))
    tl.store(words_ptr + place + 2 * ROWS, w2.to(tl.int32, bitcast=True))
    tl.store(words_ptr + place + 3 * ROWS, w3.to(tl.int32, bitcast=True))
    place = token[:, None] * ROWS + row[None, :]
    tl.store(gumbel_ptr + place, gumbel(seed, position, first_token, stream, TOKENS))
    tokens = (first_token + token)[:, None]
    tl.store(uniform_ptr + place, uniform(seed[None, :], position[None, :], tokens, stream))


@triton.jit
def _gumbel_of(out_ptr, bits_ptr, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    tl.store(out_ptr + place, gumbel_of(tl.load(bits_ptr + place).to(tl.uint32, bitcast=True)))


def draw(first_token: int, tokens: int, stream: int, seeds=SEEDS, positions=POSITIONS):
    """Words as uint32, Gumbel noise and uniform numbers, [tokens, rows] each."""
    outs = [
        torch.zeros(tokens, len(seeds), dtype=dtype) for dtype in (torch.int32, torch.float32, torch.float32)
    ]
    _draw[(1,)](*outs, seeds, positions, first_token, stream, TOKENS=tokens, ROWS=len(seeds))
    return outs[0].numpy().view(np.uint32), outs[1].numpy(), outs[2].numpy()


def defined(draw_of, first_token: int, tokens: int, stream: int) -> np.ndarray:
    """The definition's numbers, [tokens, rows]."""
    range_of = np.arange(first_token, first_token + tokens)
    pairs = zip(SEEDS.tolist(), POSITIONS.tolist(), strict=True)
    return np.stack([draw_of(seed, position, stream, range_of) for seed, position in pairs], axis=1)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("first_token", [0, 128, 151_900])
def test_words_are_the_bits_of_the_definition(first_token, stream):
    words, noisy, even = draw(first_token, 32, stream)
    assert np.array_equal(words, defined(noise.random_bits, first_token, 32, stream))
    wanted = defined(noise.gumbel, first_token, 32, stream)
    assert np.abs(noisy - wanted)[wanted > -0.8].max() < 4e-6  # below, v rounds to float32 where it is near 1
    assert np.abs(even - defined(noise.uniform, first_token, 32, stream)).max() <= 2**-24


def test_a_token_has_the_same_noise_in_every_tile_and_among_all_rows():
    _, wide, _ = draw(64, 64, noise.TARGET)
    _, late, _ = draw(96, 16, noise.TARGET)
    _, alone, _ = draw(64, 64, noise.TARGET, SEEDS[2:3], POSITIONS[2:3])
    assert np.array_equal(wide[32:48], late)
    assert np.array_equal(wide[:, 2:3], alone)


def test_noise_is_finite_and_the_exponential_behind_it_precise_from_the_least_bits_to_the_most():
    """Small v decides: those tokens win. The most bits are where v would be 1 in float32."""
    ends = [
        *range(4),
        *(1 << power for power in range(2, 32)),
        *(2**32 - 1 - (1 << power) for power in range(30)),
    ]
    bits = np.array([*ends, *[2**32 - 1] * (64 - len(ends))], dtype=np.uint32)
    out = torch.empty(64)
    _gumbel_of[(1,)](out, torch.from_numpy(bits.view(np.int32)), SIZE=64)
    v = np.minimum((bits.astype(np.float64) + 0.5) / 2**32, 1 - 2**-24)
    wanted = -np.log1p(-v)
    assert np.isfinite(out.numpy()).all()
    assert np.abs(np.exp(-out.numpy().astype(np.float64)) / wanted - 1)[v < 0.9].max() < 2e-6
    assert np.abs(out.numpy() + np.log(wanted)).max() < 5e-3
    assert out[0] == out.max() and 22 < out[0] < 23


def test_uniform_numbers_are_never_0_and_may_be_1():
    """Positions found by the definition: the least and the greatest of a million draws round to the ends' side."""
    draws = noise.uniform(7, 11, noise.ACCEPT, np.arange(1 << 20))
    for token in (int(draws.argmin()), int(draws.argmax())):
        first = token // 4 * 4
        seeds, positions = torch.tensor([7]), torch.tensor([11], dtype=torch.int32)
        _, _, found = draw(first, 4, noise.ACCEPT, seeds, positions)
        assert 0 < found[token - first, 0] <= 1
        assert found[token - first, 0] == np.float32(draws[token])
