"""What each running text has got from speculation lately: tokens over predicted times, in plain passes."""

from collections.abc import Sequence

import numpy as np

from tspec.core.proposer import Decision

MEMORY_ROUNDS = 16.0
LEAST_ROUNDS = 4.0
"""Plain rounds that a text starts with, so that a lucky first one does not decide."""


class TextSpeeds:
    """By slot: tokens, and the time that they took in plain passes, of the last rounds."""

    def __init__(self) -> None:
        self._tokens, self._passes = np.zeros(0), np.zeros(0)

    def start(self, slot: int) -> None:
        """A new text decodes plainly, as far as one knows."""
        if slot >= len(self._tokens):
            more = np.zeros(max(slot + 1, 2 * len(self._tokens)) - len(self._tokens))
            self._tokens = np.concatenate([self._tokens, more])
            self._passes = np.concatenate([self._passes, more])
        self._tokens[slot] = self._passes[slot] = LEAST_ROUNDS

    def of(self, slots: np.ndarray) -> tuple[float, ...]:
        """The speed-up of each text over plain decoding, never below 1: candidates that lose are not proposed."""
        return tuple(np.maximum(1.0, self._tokens[slots] / self._passes[slots]).tolist())

    def add(self, decision: Decision, slots: Sequence[int], rows: np.ndarray, counts: np.ndarray) -> None:
        """Note a round: `counts` tokens came to each slot; those whose row is -1 had no part in it."""
        passes = (decision.pass_s + decision.draft_s) / decision.plain_s
        fading = 1 - 1 / MEMORY_ROUNDS
        for slot, row, count in zip(slots, rows.tolist(), counts.tolist(), strict=True):
            if row >= 0:
                self._tokens[slot] = fading * self._tokens[slot] + count
                self._passes[slot] = fading * self._passes[slot] + passes
