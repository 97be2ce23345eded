"""Noise follows from seed, position, stream and token alone, and has the distributions that it claims.

Run: pytest tests/core/test_noise.py
"""

import numpy as np
from support.text_law import spend

from tspec.core.noise import ACCEPT, DRAFT, RESIDUAL, TARGET, gumbel, random_bits, uniform

TOKENS = np.arange(1 << 18)

SIX_ERRORS = 2e-9
"""How likely a mean is more than six standard errors off."""


def test_bits_are_those_of_philox():
    """A known answer of Random123's test vectors (kat_vectors, philox4x32-10, all zero)."""
    assert random_bits(0, 0, 0, np.arange(4)).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_every_part_of_the_key_changes_the_bits():
    base = random_bits(7, 3, TARGET, TOKENS)
    others = [
        random_bits(8, 3, TARGET, TOKENS),
        random_bits(7 + (1 << 32), 3, TARGET, TOKENS),
        random_bits(7, 4, TARGET, TOKENS),
        *(random_bits(7, 3, stream, TOKENS) for stream in (DRAFT, ACCEPT, RESIDUAL)),
        random_bits(7, 3, TARGET, TOKENS + len(TOKENS)),
    ]
    for other in others:
        # Equal words by chance: 2**18 / 2**32 are expected; six or more come in 1 of 1e27 runs.
        assert (base == other).sum() < 6
    assert np.array_equal(base, random_bits(7, 3, TARGET, TOKENS))


def test_gumbel_noise_has_its_mean_and_variance():
    """Six standard errors either way."""
    spend(2 * SIX_ERRORS)
    noise = gumbel(1, 2, TARGET, TOKENS)
    count = len(TOKENS)
    assert abs(noise.mean() - np.euler_gamma) < 6 * np.pi / np.sqrt(6 * count)
    assert abs(noise.var() - np.pi**2 / 6) < 6 * np.sqrt((5.4 - 1) / count) * np.pi**2 / 6


def test_uniform_numbers_are_never_zero():
    numbers = uniform(1, 2, ACCEPT, TOKENS)
    assert numbers.min() > 0 and numbers.max() <= 1
    spend(SIX_ERRORS)
    assert abs(numbers.mean() - 0.5) < 6 / np.sqrt(12 * len(TOKENS))
