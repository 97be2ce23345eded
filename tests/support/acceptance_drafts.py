"""Proposers that draw for many sequences at once, from a table of logits. Some settings plant a fault."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from support.acceptance_noise import Noise
from support.acceptance_target import DEAD

from tspec.core.sampling import DRAWN, DRAWN_CHAIN


@dataclass(frozen=True)
class Proposed:
    """The candidates of one round: tokens, parents and is_sampled int32 [n, T], num_nodes int32 [n].

    draft_logprobs  float32 [n, T, Q]
    """

    tokens: np.ndarray
    parents: np.ndarray
    num_nodes: np.ndarray
    is_sampled: np.ndarray
    draft_logprobs: np.ndarray


@dataclass(frozen=True)
class Draft:
    """A draft whose law depends on the last token.

    logits             [V, Q]
    widths             children of each node at each depth
    is_block           asks for block verification
    temperature        that it draws with
    told_temperature   that it says it draws with; another one is a fault
    cut                drops a draw of less probability than this, and stops; chains only
    is_cut_told        False is a fault: nothing is said of dropped draws
    is_replaced        siblings are drawn with replacement, and one that comes again is dropped; fresh noise only
    certain            depths whose candidates are certain: the likeliest tokens, which are matched
    known              the target's numbers of the draft's Q tokens; None: Q is V
    """

    logits: np.ndarray
    widths: Sequence[int]
    noise: Noise
    is_block: bool = False
    temperature: float = 1.0
    told_temperature: float | None = None
    cut: float = 0.0
    is_cut_told: bool = True
    is_replaced: bool = False
    certain: Sequence[int] = ()
    known: Sequence[int] | None = None

    @property
    def parents(self) -> np.ndarray:
        """Of the largest tree, int32 [T]."""
        parents, level = [-1], [0]
        for width in self.widths:
            above, level = level, []
            for node in above:
                level += range(len(parents), len(parents) + width)
                parents += [node] * width
        return np.array(parents, np.int32)

    @property
    def columns(self) -> np.ndarray:
        """The draft's tokens that it ever draws, int [P]."""
        return np.flatnonzero((self.logits > DEAD / 2).any(0))

    @property
    def tokens(self) -> np.ndarray:
        """The target's numbers of those, int [P]."""
        return self.columns if self.known is None else np.array(self.known)[self.columns]

    def propose(
        self,
        roots: np.ndarray,
        seeds: np.ndarray,
        prefix_len: np.ndarray,
        deepest: np.ndarray | None = None,
    ) -> Proposed:
        """Draw a tree a sequence behind its newest token, with candidates no deeper than `deepest` [n]."""
        parents, names = self.parents, self.tokens
        law = _log_softmax(self.logits / self.temperature)[:, self.columns]
        count, nodes = len(roots), len(parents)
        most = np.full(count, nodes) if deepest is None else deepest
        tokens, drew = np.zeros((count, nodes), np.int32), np.zeros((count, nodes), bool)
        is_kept = np.ones((count, nodes), bool)
        tokens[:, 0] = roots
        noise = [self.noise(seeds, prefix_len, depth + 1, names) for depth in range(len(self.widths))]
        depths = np.zeros(nodes, np.int64)
        for parent in range(parents.max() + 1):
            children = np.flatnonzero(parents == parent)
            depths[children] = depth = depths[parent] + 1
            scores = law[tokens[:, parent]]
            if depth in self.certain:
                drawn = _largest(scores, len(children))
            elif self.is_replaced:
                draws = [self.noise(seeds, prefix_len, depth, names) for _ in children]
                drawn = np.stack([(scores + each).argmax(1) for each in draws], axis=1)
            else:
                drawn = _largest(scores + noise[depth - 1], len(children))
            tokens[:, children] = names[drawn]
            is_asked = is_kept[:, parent] & (depth <= most)
            is_kept[:, children] = is_asked[:, None] & self._is_kept(scores, drawn)
            if depth not in self.certain:
                drew[:, parent] = is_asked & (self.is_cut_told | is_kept[:, children].any(1))
        return self._declare(*_without_gaps(tokens, parents, drew, is_kept))

    def _is_kept(self, scores: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Which of the siblings stay, bool [n, W]: likely enough, and not there already."""
        is_kept = np.take_along_axis(scores, drawn, axis=1) >= np.log(max(self.cut, 1e-300))
        for place in range(1, drawn.shape[1]):
            is_kept[:, place] &= (drawn[:, :place] != drawn[:, [place]]).all(1)
        return is_kept

    def _declare(
        self, tokens: np.ndarray, parents: np.ndarray, drew: np.ndarray, num_nodes: np.ndarray
    ) -> Proposed:
        """Say what the candidates were drawn from."""
        told = _log_softmax(self.logits / (self.told_temperature or self.temperature))
        if self.is_cut_told:
            told = np.where(told < np.log(max(self.cut, 1e-300)), -np.inf, told)
        flag = DRAWN_CHAIN if self.is_block else DRAWN
        return Proposed(
            tokens, parents, num_nodes, (flag * drew).astype(np.int32), told.astype(np.float32)[tokens]
        )


def _largest(scores: np.ndarray, count: int) -> np.ndarray:
    """The numbers of the largest scores [n, Q], best first: int [n, count]."""
    left, rows, found = scores.copy(), np.arange(len(scores)), []
    for _ in range(count):
        found.append(left.argmax(1))
        left[rows, found[-1]] = -np.inf
    return np.stack(found, axis=1)


def _without_gaps(
    tokens: np.ndarray, parents: np.ndarray, drew: np.ndarray, is_kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(tokens, parents, drew [n, T], num_nodes [n]) of the nodes that are kept, in their order."""
    order = np.argsort(~is_kept, axis=1, kind="stable")
    place = np.argsort(order, axis=1)
    moved = np.take_along_axis(place, np.maximum(parents, 0)[order], axis=1).astype(np.int32)
    moved[:, 0] = -1
    tokens, drew = (np.take_along_axis(each, order, axis=1) for each in (tokens, drew))
    return tokens, moved, drew, is_kept.sum(1).astype(np.int32)


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
