"""A proposer that draws from a table, beside a target whose logits are one: engines whose texts have a known law."""

import numpy as np
from support.acceptance_drafts import Draft
from support.engines import TestProposer

from tspec.core.proposer import DraftBatch
from tspec.core.tree import CandidateTrees

VOCAB, ALIVE = 64, 4
"""Of the vocabulary only the first tokens are ever likely."""


def table(seed: int) -> np.ndarray:
    """Random logits, [V, V]: those of the next token by the last one."""
    logits = np.full((VOCAB, VOCAB), -60.0, np.float32)
    logits[:, :ALIVE] = 1.5 * np.random.default_rng(seed).normal(size=(VOCAB, ALIVE))
    return logits


TARGET, NEAR = table(1), table(1) + np.float32(0.5) * table(2).clip(-9)
FAR = table(2)
"""Logits of a target, and of drafts that are near it and far from it."""


class DrawingProposer(TestProposer):
    """Draws from a table, as many nodes as it may, and says from which law."""

    name = "drawing"

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self.draft = draft

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        sampling = batch.sampling
        assert sampling is not None
        drawn = self.draft.propose(batch.roots, sampling.seeds, sampling.positions)
        num_nodes = np.minimum(drawn.num_nodes, batch.max_nodes)
        is_sampled = drawn.is_sampled.copy()
        for row, count in enumerate(num_nodes.tolist()):
            has_child = np.isin(np.arange(is_sampled.shape[1]), drawn.parents[row, 1:count])
            is_sampled[row, ~has_child] = 0  # nothing was drawn there
        trees = CandidateTrees(drawn.tokens, drawn.parents, num_nodes, is_sampled, drawn.draft_logprobs)
        trees.check()
        return trees


DRAFTS = {
    "chains": {"widths": (1, 1)},
    "blocks": {"widths": (1, 1), "is_block": True},
    "trees": {"widths": (2, 2)},
}
"""Forms of a draft's trees."""
