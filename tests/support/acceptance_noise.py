"""Noise that proposers draw with, some of it wrong on purpose."""

from collections.abc import Callable

import numpy as np

from tspec.core.noise import RESIDUAL, TARGET, draft_stream, gumbel

Noise = Callable[[np.ndarray, np.ndarray, int, np.ndarray], np.ndarray]
"""(seeds [n], prefix_len [n], depth, tokens [Q]) -> standard Gumbel noise [n, Q] for the draws at a depth."""


def fresh_noise(seed: int) -> Noise:
    """Noise that has nothing to do with the seeds of the sequences."""
    generator = np.random.default_rng(seed)
    return lambda seeds, prefix_len, depth, tokens: generator.gumbel(size=(len(seeds), len(tokens)))


def keyed_noise(seeds: np.ndarray, prefix_len: np.ndarray, depth: int, tokens: np.ndarray) -> np.ndarray:
    """What a proposer should take: new in every round."""
    return _gumbel(seeds, prefix_len + 1, draft_stream(depth), tokens)


def noise_by_place(seeds: np.ndarray, prefix_len: np.ndarray, depth: int, tokens: np.ndarray) -> np.ndarray:
    """Wrong for blocks: a place that was proposed for in one round has the same noise in the next."""
    return _gumbel(seeds, prefix_len + depth, draft_stream(0), tokens)


def residual_noise(seeds: np.ndarray, prefix_len: np.ndarray, depth: int, tokens: np.ndarray) -> np.ndarray:
    """Wrong: the noise that the bonus token is drawn with after a refusal at this place."""
    return _gumbel(seeds, prefix_len + depth, RESIDUAL, tokens)


def coupled_noise(seeds: np.ndarray, prefix_len: np.ndarray, depth: int, tokens: np.ndarray) -> np.ndarray:
    """The target's own noise: for candidates that are matched."""
    return _gumbel(seeds, prefix_len + depth, TARGET, tokens)


def no_noise(seeds: np.ndarray, prefix_len: np.ndarray, depth: int, tokens: np.ndarray) -> np.ndarray:
    """The likeliest tokens."""
    return np.zeros((len(seeds), len(tokens)))


def _gumbel(seeds: np.ndarray, positions: np.ndarray, stream: int, tokens: np.ndarray) -> np.ndarray:
    tokens = np.broadcast_to(tokens, (len(seeds), len(tokens)))
    return gumbel(seeds[:, None], positions[:, None].astype(np.uint64), stream, tokens)
