"""The CPU's noise: the bits of the definition, known answers of Philox, Gumbel noise near its float64 value everywhere.

Run: pytest tests/kernels/test_cpu_noise.py
"""

from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba import types

from tspec.core.noise import TARGET, gumbel, random_bits
from tspec.kernels.cpu import noise
from tspec.kernels.cpu.noise import LARGEST_GUMBEL, NOISE_TOKENS
from tspec.kernels.cpu.simd import I32, LANES, _intrinsic, lanes, load_vector, store
from tspec.kernels.jit import native
from tspec.runtime.memory import address

MAX_ULP = 3
"""Of float32, at the size of 1 where noise is smaller: it is added to scores of that size and more."""

KEYS = (
    (0, 0, 0),
    (1, 2, 3),
    ((1 << 63) - 1, (1 << 31) - 1, 3),
    (0xA4093822299F31D0, 0x13198A2E, 1),
    (1 << 32, 77, 0),
)
TOKENS = (0, 4, 128, 49148, 1 << 20, (1 << 31) - NOISE_TOKENS)


def _gumbel_at(builder: Any, bits: Any) -> Any:
    return noise._gumbel(builder, load_vector(builder, bits, ir.VectorType(I32, LANES), 4))


gumbel_at = _intrinsic(lanes, (types.int64,), _gumbel_at)


@native()
def gumbel_of_bits(out, bits, count):
    for at in range(0, count * 4, LANES * 4):
        store(out + at, gumbel_at(bits + at))


@native()
def bits_of(out, seed, position, stream, token):
    noise.fill_bits(out, seed, position, stream, token)


@native()
def noise_of(out, seed, position, stream, token):
    noise.fill_gumbel(out, seed, position, stream, token)


@native()
def panel_noise_of(out, seed, position, stream, token):
    noise.fill_panel(out, seed, position, stream, token)


@native()
def word_of(seed, position, stream, token):
    return noise.random_word(seed, position, stream, token)


def filled(fill: Any, dtype: Any, seed: int, *rest: int) -> np.ndarray:
    out = np.zeros(NOISE_TOKENS, dtype)
    fill(address(out), np.uint64(seed).astype(np.int64), *rest)
    return out


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("token", TOKENS)
def test_bits_are_those_of_the_definition(key, token):
    expected = random_bits(*key, np.arange(token, token + NOISE_TOKENS))
    assert np.array_equal(filled(bits_of, np.uint32, *key, token), expected)
    seed, *rest = key
    words = [word_of(np.uint64(seed).astype(np.int64), *rest, token + each) for each in range(9)]
    assert words == expected[:9].tolist()


def test_bits_are_known_answers_of_philox():
    """The one of Random123's test vectors (kat_vectors, philox4x32-10) whose last counter is 0."""
    assert filled(bits_of, np.uint32, 0, 0, 0, 0)[:4].tolist() == [
        0x6627E8D5,
        0xE169C58D,
        0xBC57AC4C,
        0x9B00DBD8,
    ]


@pytest.mark.parametrize("key", KEYS)
def test_noise_of_a_token_is_the_same_in_blocks_and_in_panels(key):
    blocks = np.concatenate([filled(noise_of, np.float32, *key, start) for start in (0, NOISE_TOKENS)])
    for start in (0, 4, 24, 48):
        panel = filled(panel_noise_of, np.float32, *key, start)
        count = NOISE_TOKENS if panel[-1] != 0 else NOISE_TOKENS // 2
        assert np.array_equal(panel[:count], blocks[start : start + count])


def test_noise_is_near_its_float64_value():
    for start in range(0, 1 << 18, NOISE_TOKENS * 64):
        tokens = np.arange(start, start + NOISE_TOKENS)
        assert_near(filled(noise_of, np.float32, 5, 9, TARGET, start), gumbel(5, 9, TARGET, tokens))


def test_noise_is_near_its_float64_value_at_both_ends():
    """The smallest and the largest bits, powers of two between them, and around every change of the computation."""
    ends = np.arange(1 << 16, dtype=np.uint32)
    edges = np.array(
        [1 << 30, 3 << 30, round((1 - 0.5**0.5) * 2**32), round((1 - np.exp(-1)) * 2**32)], np.int64
    )
    near = (edges[:, None] + np.arange(-5000, 5000)).ravel().astype(np.uint32)
    powers = (1 << np.arange(32, dtype=np.int64)).astype(np.uint32)
    bits = np.concatenate([ends, ~ends, near, powers, powers - 1, ~powers])
    bits = np.concatenate([bits, np.zeros(-len(bits) % LANES, np.uint32)])
    found = np.empty(len(bits), np.float32)
    gumbel_of_bits(address(found), address(bits), len(bits))
    assert_near(found, -np.log(-np.log1p(-(bits.astype(np.float64) + 0.5) / 2.0**32)))
    assert found.max() < LARGEST_GUMBEL


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    unit = np.spacing(np.maximum(np.abs(expected), 1).astype(np.float32))
    assert (np.abs(found - expected) / unit).max() <= MAX_ULP
