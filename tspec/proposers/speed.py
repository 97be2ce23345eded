"""What each running text has got from speculation lately."""

import numpy as np

from tspec.proposers.union_round import Speeds

LEAST_ROUNDS = 4.0
"""Plain rounds that a text starts with, so that a lucky first one does not decide."""
FIRST_GAIN = 0.25
"""Tokens a round that candidates are taken to promise before any were asked for."""


class TextSpeeds:
    """Arrays with a place a slot, as native functions want them."""

    def __init__(self) -> None:
        self.rows = Speeds(np.zeros(0), np.zeros(0), np.zeros(0))

    def start(self, slot: int) -> None:
        """A new text decodes plainly, as far as one knows."""
        if slot >= len(self.rows.tokens):
            more = np.zeros(max(slot + 1, 2 * len(self.rows.tokens)) - len(self.rows.tokens))
            self.rows = Speeds(*(np.concatenate([each, more]) for each in self.rows))
        self.rows.tokens[slot] = self.rows.passes[slot] = LEAST_ROUNDS
        self.rows.gains[slot] = FIRST_GAIN
