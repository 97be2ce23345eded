"""The protocol of grammars and whatever else decides, from the text so far, which tokens may come next."""

from typing import Protocol

import numpy as np


class ConstraintState(Protocol):
    """Where one sequence stands in its constraint. It walks down candidates and back up again."""

    def fill_mask(self, mask: np.ndarray) -> None:
        """Write which tokens may come next: `mask` int32 [ceil(V / 32)], one bit a token, the lowest bit first."""

    def advance(self, token: int) -> bool:
        """Take `token` as the next one; False, and nothing changed, where it may not come."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens that were advanced over."""


class LogitsConstraint(Protocol):
    """What may be written. Shared by requests: each starts a state of its own."""

    def start(self, vocab_size: int) -> ConstraintState:
        """Return the state of an empty output.

        Errors   ConfigError where the constraint was made for another vocabulary
        """
