"""A target whose logits are a table, with every parameter of a request; its law, as the references say it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tspec.core.sampling import EDIT_BIAS, EDIT_MASK, EDIT_PENALTIES
from tspec.core.shapes import mask_words
from tspec.kernels.reference import REFERENCES

ROOT, PROMPT_LEN = 0, 3
"""Every text starts behind this token, at this place."""

DEAD = -200.0
"""Logit of a token that never comes, whatever is done to it."""


@dataclass(frozen=True)
class Target:
    """A target's table of logits, and how a request samples from it.

    logits     float32 [V, V]: after each token
    penalties  repetition, presence, frequency
    bias       [V], added to logits by token
    allowed    bool [V, V]: which token may come after which
    """

    logits: np.ndarray
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalties: tuple[float, float, float] = (1.0, 0.0, 0.0)
    bias: np.ndarray | None = None
    allowed: np.ndarray | None = None

    @property
    def vocab(self) -> int:
        return len(self.logits)

    @property
    def live(self) -> np.ndarray:
        """The tokens that may come, int [L]."""
        return np.flatnonzero((self.logits > DEAD).any(0))

    @property
    def edits(self) -> int:
        flags = EDIT_PENALTIES * (self.penalties != (1.0, 0.0, 0.0))
        return flags | EDIT_BIAS * (self.bias is not None) | EDIT_MASK * (self.allowed is not None)

    def requests(self, rows: int) -> dict[str, np.ndarray]:
        """The static inputs of so many equal requests."""
        numbers = {"temperature": self.temperature, "top_p": self.top_p, "min_p": self.min_p}
        found = {name: np.full(rows, value, np.float32) for name, value in numbers.items()}
        found |= {"top_k": np.full(rows, self.top_k, np.int32), "edits": np.full(rows, self.edits, np.int32)}
        found["penalties"] = np.tile(np.array(self.penalties, np.float32), (rows, 1))
        bias = np.zeros(self.vocab) if self.bias is None else self.bias
        return found | {"bias": np.tile(bias.astype(np.float32), (rows, 1))}

    def masks(self, tokens: np.ndarray) -> np.ndarray:
        """int32 [..., words]: what may come after each of `tokens`."""
        allowed = np.ones((self.vocab, self.vocab), bool) if self.allowed is None else self.allowed
        padded = np.zeros((self.vocab, 32 * mask_words(self.vocab)), bool)
        padded[:, : self.vocab] = allowed
        return np.packbits(padded, axis=1, bitorder="little").view("<i4")[tokens]

    def law(self, length: int) -> np.ndarray:
        """The joint law of `length` tokens by plain decoding, over the live ones: [L] * length."""
        live, law = self.live, np.ones(())
        for _ in range(length):
            rows = [
                law[places] * self.next(live[list(places)].tolist())[live] for places in np.ndindex(law.shape)
            ]
            law = np.stack(rows).reshape(*law.shape, len(live))
        return law

    def places(self, texts: np.ndarray) -> np.ndarray:
        """Tokens as numbers of live ones, int of the same shape; all have to be live."""
        assert np.isin(texts, self.live).all()
        return np.searchsorted(self.live, texts)

    def next(self, prefix: Sequence[int]) -> np.ndarray:
        """float64 [V]: what comes after the root and these tokens."""
        last = np.array([[prefix[-1] if len(prefix) else ROOT]], np.int32)
        static = self.requests(1) | {"mask": self.masks(last), "counts": start_counts(1, self.vocab)}
        np.add.at(static["counts"][0], list(prefix), 2)
        given = {name: torch.from_numpy(array) for name, array in static.items()}
        one = torch.ones(1, dtype=torch.int32)
        logits = torch.from_numpy(self.logits[last])
        tables = [given[name] for name in ("edits", "penalties", "counts", "bias", "mask")]
        (edited,) = REFERENCES["edit_logits"](
            {}, logits, *tables, torch.from_numpy(last), one.long()[None], one
        )
        filters = [given[name] for name in ("temperature", "top_k", "top_p", "min_p")]
        threshold, first_tie, _ = REFERENCES["find_kept"]({}, edited, *filters, one)
        scores = edited[0, 0] / given["temperature"][0]
        tokens = torch.arange(self.vocab)
        is_kept = (scores > threshold) | ((scores == threshold) & (tokens >= first_tie))
        return scores.double().masked_fill(~is_kept[0], -torch.inf).softmax(0).numpy()


def start_counts(rows: int, vocab: int) -> np.ndarray:
    """Counts of texts that have only a prompt: the root and the token after it."""
    counts = np.zeros((rows, vocab), np.int32)
    counts[:, [ROOT, 1]] = 1
    return counts
