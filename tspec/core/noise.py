"""The one source of randomness: numbers that follow from (seed, absolute position, stream, token) alone.

No state: a token's noise is the same whichever batch, bucket, tree or proposer it is drawn in, and a replayed plan is
right by construction. This file is the definition; the kernels of each backend compute the same bits.

    bits    Philox4x32-10 with the seed as its key and the counter (token // 4, position, stream, 0); word token % 4
    gumbel  -log(E) with E = -log(1 - v) exponential, v = (bits + 1/2) / 2**32: fine where E is small, which decides
    uniform (bits + 1) / 2**32, in (0, 1]

Source   Philox: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011), section 3.4
"""

import numpy as np

TARGET, DRAFT, ACCEPT, RESIDUAL = range(4)
"""Streams: the target's samples, a draft's own, the accept tests, and the tokens drawn after a refusal."""

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def draft_stream(depth: int) -> int:
    """Return the stream of a draft's own draws at `depth` below the root, all at the first position after the root.

    A place that one round proposes for and does not commit is proposed for again in the next. By then its noise has to
    be new: block verification looks at candidates behind the one it refuses, and so at their noise.
    """
    return DRAFT + 4 * depth


def random_bits(seed: int, position: int, stream: int, tokens: np.ndarray) -> np.ndarray:
    """Return 32 random bits a token, as uint32 of the shape of `tokens` (int, at least 0)."""
    tokens = np.asarray(tokens, dtype=np.uint64)
    counter = [
        tokens >> np.uint64(2),
        *(np.full(tokens.shape, value, dtype=np.uint64) for value in (position, stream, 0)),
    ]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)]
    for _ in range(ROUNDS):
        product = [np.uint64(MULTIPLIERS[side]) * counter[2 * side] for side in (0, 1)]
        counter = [
            product[1] >> _WORD ^ counter[1] ^ key[0],
            product[1] & _LOW,
            product[0] >> _WORD ^ counter[3] ^ key[1],
            product[0] & _LOW,
        ]
        key = [key[side] + np.uint64(KEY_STEPS[side]) & _LOW for side in (0, 1)]
    words = np.stack(counter)
    return np.take_along_axis(words, (tokens & np.uint64(3)).astype(np.int64)[None], axis=0)[0].astype(
        np.uint32
    )


def gumbel(seed: int, position: int, stream: int, tokens: np.ndarray) -> np.ndarray:
    """Return standard Gumbel noise a token, float64: argmax of log p + noise is a sample of p.

    Source: Gumbel-max, Maddison et al., A* Sampling (2014), section 2
    """
    v = (random_bits(seed, position, stream, tokens).astype(np.float64) + 0.5) / 2.0**32
    return -np.log(-np.log1p(-v))


def uniform(seed: int, position: int, stream: int, tokens: np.ndarray) -> np.ndarray:
    """Return a uniform number a token, float64 in (0, 1]: `u <= p` is never true for p = 0."""
    return (random_bits(seed, position, stream, tokens).astype(np.float64) + 1.0) / 2.0**32
