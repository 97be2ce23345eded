"""The proposer that guesses nothing: plain decoding, as a verify pass over the root alone."""

import numpy as np

from tspec.core.proposer import Committed, DraftBatch
from tspec.core.tree import NO_PARENT, CandidateTrees


class NoProposer:
    """Answers every row with its root; holds nothing."""

    name = "none"

    def warm_up(self) -> None:
        """Nothing to compile."""

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start a sequence; nothing is kept of it."""

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """Return trees of one node."""
        roots = np.array(batch.roots, dtype=np.int32)[:, None]
        return CandidateTrees(roots, np.full_like(roots, NO_PARENT), np.ones(len(roots), dtype=np.int32))

    def observe(self, committed: Committed) -> None:
        """Learn nothing."""

    def release(self, slot: int) -> None:
        """Free nothing."""
