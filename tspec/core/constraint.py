"""The protocol of grammars and whatever else decides, from the text so far, which tokens may come next."""

from collections.abc import Collection, Iterable
from typing import Protocol, runtime_checkable

import numpy as np

from tspec.core.shapes import mask_words


def token_bits(vocab_size: int, tokens: Iterable[int] | None) -> np.ndarray:
    """Return int32 [ceil(V / 32)] with the bits of `tokens` set, the lowest bit first; None sets all up to V.

    Ids past the vocabulary are left out.
    """
    flags = np.zeros(mask_words(vocab_size) * 32, dtype=np.bool_)
    if tokens is None:
        flags[:vocab_size] = True
    else:
        ids = np.fromiter(tokens, dtype=np.int64)
        flags[ids[ids < vocab_size]] = True
    return np.packbits(flags, bitorder="little").view("<i4").astype(np.int32)


class ConstraintState(Protocol):
    """Where one sequence stands in its constraint. It walks down candidates and back up again."""

    def fill_mask(self, mask: np.ndarray) -> None:
        """Write which tokens may come next: `mask` int32 [ceil(V / 32)], one bit a token, the lowest bit first.

        Bits past the vocabulary are ignored. A stop token ends the text, so it is allowed where the text is complete.

        Errors   ConfigError where the constraint cannot go on; the state is as before
        """

    def advance(self, token: int) -> bool:
        """Take `token` as the next one; False, and nothing changed, where it may not come.

        Errors   ConfigError as for `fill_mask`
        """

    def take_back(self, count: int) -> None:
        """Go back to before the last `count` tokens that were advanced over."""


@runtime_checkable
class LogitsConstraint(Protocol):
    """What may be written. Shared by requests: each starts a state of its own."""

    def start(self, vocab_size: int, stop_ids: Collection[int]) -> ConstraintState:
        """Return the state of an empty output of a request that ends at any of `stop_ids`.

        Errors   ConfigError where the constraint was made for another vocabulary
        """
