"""Proposers that draw for many sequences at once, from a table of logits. Some settings plant a fault."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tspec.core.noise import RESIDUAL, TARGET, draft_stream, gumbel
from tspec.core.sampling import DRAWN, DRAWN_CHAIN

Noise = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]
"""(seeds [n], prefix_len [n], depth, vocab) -> standard Gumbel noise [n, vocab] for the draws at a depth."""


def fresh_noise(seed: int) -> Noise:
    """Noise that has nothing to do with the seeds of the sequences."""
    generator = np.random.default_rng(seed)
    return lambda seeds, prefix_len, depth, vocab: generator.gumbel(size=(len(seeds), vocab))


def keyed_noise(seeds: np.ndarray, prefix_len: np.ndarray, depth: int, vocab: int) -> np.ndarray:
    """What a proposer should take: new in every round."""
    return _gumbel(seeds, prefix_len + 1, draft_stream(depth), vocab)


def noise_by_place(seeds: np.ndarray, prefix_len: np.ndarray, depth: int, vocab: int) -> np.ndarray:
    """Wrong for blocks: a place that was proposed for in one round has the same noise in the next."""
    return _gumbel(seeds, prefix_len + depth, draft_stream(0), vocab)


def residual_noise(seeds: np.ndarray, prefix_len: np.ndarray, depth: int, vocab: int) -> np.ndarray:
    """Wrong: the noise that the bonus token is drawn with after a refusal at this place."""
    return _gumbel(seeds, prefix_len + depth, RESIDUAL, vocab)


def coupled_noise(seeds: np.ndarray, prefix_len: np.ndarray, depth: int, vocab: int) -> np.ndarray:
    """The target's own noise: for candidates that are matched."""
    return _gumbel(seeds, prefix_len + depth, TARGET, vocab)


def no_noise(seeds: np.ndarray, prefix_len: np.ndarray, depth: int, vocab: int) -> np.ndarray:
    """The likeliest tokens."""
    return np.zeros((len(seeds), vocab))


def _gumbel(seeds: np.ndarray, positions: np.ndarray, stream: int, vocab: int) -> np.ndarray:
    tokens = np.broadcast_to(np.arange(vocab), (len(seeds), vocab))
    return gumbel(seeds[:, None], positions[:, None].astype(np.uint64), stream, tokens)


@dataclass(frozen=True)
class Proposed:
    """The candidates of one round: tokens and is_sampled [n, T], num_nodes [n], draft_logprobs [n, T, V]."""

    tokens: np.ndarray
    num_nodes: np.ndarray
    is_sampled: np.ndarray
    draft_logprobs: np.ndarray


@dataclass(frozen=True)
class Draft:
    """A draft whose law depends on the last token.

    logits             [V, V]
    widths             children of each node at each depth
    is_block           asks for block verification
    temperature        that it draws with
    told_temperature   that it says it draws with; another one is a fault
    cut                drops a draw of less probability than this, and stops; chains only
    is_cut_told        False is a fault: nothing is said of dropped draws
    is_certain         says that its candidates are certain: they are matched
    """

    logits: np.ndarray
    widths: Sequence[int]
    noise: Noise
    is_block: bool = False
    temperature: float = 1.0
    told_temperature: float | None = None
    cut: float = 0.0
    is_cut_told: bool = True
    is_certain: bool = False

    @property
    def parents(self) -> np.ndarray:
        parents, level = [-1], [0]
        for width in self.widths:
            above, level = level, []
            for node in above:
                level += range(len(parents), len(parents) + width)
                parents += [node] * width
        return np.array(parents, np.int32)

    def propose(self, roots: np.ndarray, seeds: np.ndarray, prefix_len: np.ndarray) -> Proposed:
        """Draw a tree a sequence behind its newest token."""
        parents, law = self.parents, _log_softmax(self.logits / self.temperature)
        tokens = np.zeros((len(roots), len(parents)), np.int32)
        tokens[:, 0] = roots
        noise = [
            self.noise(seeds, prefix_len, depth, law.shape[1]) for depth in range(1, len(self.widths) + 1)
        ]
        depths = np.zeros(len(parents), np.int64)
        for parent in range(parents.max() + 1):
            children = np.flatnonzero(parents == parent)
            depths[children] = depths[parent] + 1
            scores = law[tokens[:, parent]] + noise[depths[parent]]
            tokens[:, children] = np.argsort(-scores, axis=1)[:, : len(children)]
        return self._declare(tokens, law)

    def _declare(self, tokens: np.ndarray, law: np.ndarray) -> Proposed:
        """Cut what is to be cut, and say what the candidates were drawn from."""
        count, nodes = tokens.shape
        num_nodes = np.full(count, nodes, np.int32)
        for node in range(nodes - 1, 0, -1):
            is_doubtful = law[tokens[:, self.parents[node]], tokens[:, node]] < np.log(max(self.cut, 1e-30))
            num_nodes[is_doubtful] = node
        told = _log_softmax(self.logits / (self.told_temperature or self.temperature))
        if self.is_cut_told:
            told = np.where(told < np.log(max(self.cut, 1e-30)), -np.inf, told)
        numbers = np.arange(nodes)
        is_drawn = np.broadcast_to(numbers <= self.parents.max(), (count, nodes))
        if not self.is_cut_told:
            is_drawn = is_drawn & (numbers < num_nodes[:, None] - 1)
        flag = 0 if self.is_certain else DRAWN_CHAIN if self.is_block else DRAWN
        return Proposed(
            tokens, num_nodes, (flag * is_drawn).astype(np.int32), told[tokens].astype(np.float32)
        )


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
