"""When lookups are asked: seldom for texts in which their candidates bring less than the asking costs."""

from collections.abc import Sequence

import numpy as np

WAIT_ROUNDS = 8
"""Rounds between two of a text in which asking does not pay: a text that begins to repeat itself is noticed in time."""


class Asking:
    """For each slot, how many rounds are left until it is asked again."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}

    def start(self, slot: int) -> None:
        """A new text is asked at once."""
        self._left[slot] = 0

    def due(self, slots: Sequence[int], gains: np.ndarray, least: float) -> np.ndarray:
        """Return bool [B]: who is asked in this round.

        gains   float64 [B]: what candidates promised lately, in tokens a round
        least   tokens a round that asking costs
        """
        due = np.zeros(len(slots), dtype=np.bool_)
        for row, (slot, gain) in enumerate(zip(slots, gains.tolist(), strict=True)):
            left = self._left.get(slot, 0)
            due[row] = left == 0 or gain >= least
            self._left[slot] = WAIT_ROUNDS - 1 if due[row] else left - 1
        return due
