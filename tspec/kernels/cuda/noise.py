"""Random numbers of the kernels: the bits of tspec/core/noise.py, and Gumbel noise and uniform numbers from them.

Device functions only. Elementwise and without state: a token's noise is the same in every tile, batch and bucket.

    v = (bits + 1/2) / 2**32, at most 1 - 2**-24, and E = -log(1 - v) in float32
    gumbel = -log(E)        uniform = (bits + 1) / 2**32

Rounding  u = 1 - v loses the last bits of a small v, which decides who wins. What it loses, (u - 1) + v, is exact in
          float32 and is added to -log(u): E is within a few ulp of its value for every v, down to 2**-33
Oracle    tspec/core/noise.py
"""

import triton
import triton.language as tl

from tspec.core import noise

FIRST = tl.constexpr(noise.MULTIPLIERS[0])
SECOND = tl.constexpr(noise.MULTIPLIERS[1])
FIRST_STEP = tl.constexpr(noise.KEY_STEPS[0])
SECOND_STEP = tl.constexpr(noise.KEY_STEPS[1])
ROUNDS = tl.constexpr(noise.ROUNDS)
TARGET = tl.constexpr(noise.TARGET)
WORDS = tl.constexpr(4)
"""Tokens that share a counter, and random words of it."""


@triton.jit
def random_words(seed, position, quad, stream):
    """The four words, uint32, of counter (quad, position, stream, 0) under the key `seed`: of tokens 4 * quad + 0..3.

    Shapes   seed int64, position and quad int32 or int64 broadcast to one shape, that of each word; stream: a number
    """
    zero = tl.zeros_like(quad).to(tl.uint32)
    c0, c1, c2, c3 = quad.to(tl.uint32), position.to(tl.uint32), (zero + stream).to(tl.uint32), zero
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        low, high = c0, c2
        c0 = tl.umulhi(high, SECOND) ^ c1 ^ k0
        c1 = high * SECOND
        c2 = tl.umulhi(low, FIRST) ^ c3 ^ k1
        c3 = low * FIRST
        k0 += FIRST_STEP
        k1 += SECOND_STEP
    return c0, c1, c2, c3


@triton.jit
def gumbel_of(bits):
    """Standard Gumbel noise of random bits. See the module."""
    v = tl.minimum((bits.to(tl.float32) + 0.5) * (1 / 4294967296), 1 - 1 / 16777216)
    u = 1.0 - v
    return -tl.log((u - 1.0 + v) - tl.log(u))


@triton.jit
def gumbel(seed, position, first_token, stream, TOKENS: tl.constexpr):
    """Noise [TOKENS, M] of tokens first_token, first_token + 1, …; one counter for four of them.

    Shapes   seed, position: [M]; stream: a number; first_token: one that is a multiple of 4, as TOKENS is
    """
    M: tl.constexpr = seed.shape[0]
    quad = first_token // WORDS + tl.arange(0, TOKENS // WORDS)
    w0, w1, w2, w3 = random_words(seed[None, :], position[None, :], quad[:, None], stream)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # the last axis counts in ones, the one before in twos
    return gumbel_of(tl.reshape(tl.permute(words, (0, 2, 3, 1)), (TOKENS, M)))


@triton.jit
def uniform(seed, position, token, stream):
    """A number in (0, 1] a token: `uniform <= p` is never true for p = 0. Operands broadcast to one shape."""
    w0, w1, w2, w3 = random_words(seed, position, token // WORDS, stream)
    word = token % WORDS
    bits = tl.where(word == 0, w0, tl.where(word == 1, w1, tl.where(word == 2, w2, w3)))
    return (bits.to(tl.float32) + 1.0) * (1 / 4294967296)
