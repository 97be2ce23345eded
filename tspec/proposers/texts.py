"""The committed tokens of each slot, for proposers that have to read them again."""

import numpy as np

MIN_CAPACITY_TOKENS = 1024


class Text:
    """One sequence's tokens; room doubles when it is full."""

    def __init__(self, tokens: np.ndarray) -> None:
        self._tokens = np.zeros(max(MIN_CAPACITY_TOKENS, 2 * len(tokens)), dtype=np.int32)
        self._tokens[: len(tokens)] = tokens
        self.length = len(tokens)

    def append(self, tokens: np.ndarray) -> None:
        """Add committed tokens."""
        end = self.length + len(tokens)
        if end > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros(end, dtype=np.int32)])
        self._tokens[self.length : end] = tokens
        self.length = end

    def tokens(self, start: int, end: int) -> np.ndarray:
        """A view of tokens [start, end)."""
        assert 0 <= start <= end <= self.length, (start, end, self.length)
        return self._tokens[start:end]
