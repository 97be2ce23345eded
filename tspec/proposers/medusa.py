"""Medusa heads as a proposer: they read the target's last hidden state, and guess each place for itself.

They have no cache, so a round needs only to know where the root stands. The tree is the best of all combinations by
the product of the heads' probabilities.
"""

import numpy as np

from tspec.core.proposer import CacheRows, Committed, DraftBatch
from tspec.core.tree import NO_PARENT, CandidateTrees
from tspec.proposers.growth import PRIORS, Level, best_trees
from tspec.proposers.model import plant, root_trees, round_kind
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.inputs import Executor, PassInputs

NEVER_BEHIND = 1 << 30


class MedusaProposer:
    """Proposes from `depth` heads, each with its `width` likeliest tokens."""

    num_slots = 0

    def __init__(self, executor: Executor, *, depth: int, width: int) -> None:
        self.name = "medusa"
        self.priors = PRIORS
        self._executor = executor
        self._depth = depth
        self._width = width

    def warm_up(self) -> None:
        """Nothing: its executor is warm when it comes here."""

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start a sequence; nothing is kept of it."""

    def release(self, slot: int) -> None:
        """Free nothing."""

    def observe(self, committed: Committed) -> None:
        """Learn nothing: what the heads read, the target's own pass stores."""

    def follow(self, rows: CacheRows) -> None:
        """Take nothing in."""

    def num_cached(self, slot: int) -> int:
        """No cache is ever behind."""
        return NEVER_BEHIND

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """Return one tree a row; the root alone where there is no room for candidates."""
        caches = batch.caches
        assert caches is not None, "the loop gives a CachingProposer where its caches are"
        trees = root_trees(batch)
        rows = np.flatnonzero((batch.max_nodes > 1) & (caches.ends > 0))  # of no token, nothing is stored
        if len(rows) == 0:
            return trees
        depth = int(min(self._depth, batch.max_nodes[rows].max() - 1))
        nodes = CandidateTrees(
            batch.roots[rows][:, None],
            np.full((len(rows), 1), NO_PARENT, dtype=np.int32),
            np.ones(len(rows), dtype=np.int32),
        )
        inputs = PassInputs(nodes, caches.ends[rows], caches.block_table[rows])
        outputs = self._executor.run(round_kind(depth), smallest_bucket(len(rows), 1), inputs)
        levels = combine(
            [outputs[f"level{head}.tokens"][: len(rows), 0] for head in range(depth)],
            [outputs[f"level{head}.logprobs"][: len(rows), 0] for head in range(depth)],
        )
        plant(trees, rows, best_trees(batch.roots[rows], levels, batch.max_nodes[rows]))
        return trees


def combine(tokens: list[np.ndarray], logprobs: list[np.ndarray]) -> list[Level]:
    """Levels of a tree in which every node has the same candidates below it; each level's N best go on.

    Shapes: tokens int32, logprobs float32 [B, N], a pair a head. Cost: N * N candidates a level
    """
    rows, most = tokens[0].shape
    levels: list[Level] = []
    above = np.zeros((rows, 1), dtype=np.float32)
    for guessed, likely in zip(tokens, logprobs, strict=True):
        scores = above[:, :, None] + likely[:, None, :]
        flat = scores.reshape(rows, -1)
        best = np.argsort(-flat, axis=1, kind="stable")[:, :most]
        shape = (rows, above.shape[1], most)
        levels.append(Level(np.broadcast_to(guessed[:, None], shape), scores, best.astype(np.int32)))
        above = np.take_along_axis(flat, best, axis=1)
    return levels
