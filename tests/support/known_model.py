"""A model proposer that is right as often as it is told to be, and that takes no time but what is predicted."""

from collections.abc import Callable

import numpy as np

from tspec.core.proposer import CacheRows, Committed, DraftBatch
from tspec.core.sampling import DRAWN_CHAIN
from tspec.core.tree import CandidateTrees
from tspec.proposers.growth import PRIORS
from tspec.proposers.model import root_trees

LAW_SIZE = 8
"""Tokens of the laws that it gives."""


class KnownModel:
    """Proposes chains of what a text will be, each candidate right by a chance of its own; wrong ones are negative.

    future       the tokens that come after a text
    chance       by the number of tokens that are there
    is_drawn     says that its candidates were drawn, in rows of a temperature above 0
    asked        by round: {slot: candidates}
    """

    name = "known"
    priors = PRIORS
    num_slots = 0

    def __init__(
        self,
        future: Callable[[list[int]], list[int]],
        chance: Callable[[int], float],
        *,
        is_drawn: bool = False,
        seed: int = 0,
    ) -> None:
        self.future, self.chance, self.is_drawn = future, chance, is_drawn
        self.asked: list[dict[int, int]] = []
        self.late: list[int] = []
        self._random = np.random.default_rng(seed)
        self._texts: dict[int, list[int]] = {}
        self._cached: dict[int, int] = {}

    def warm_up(self) -> None:
        """Nothing."""

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """A prompt is taken in at once."""
        self._texts[slot] = prompt.tolist()
        self._cached[slot] = len(prompt) - 1

    def release(self, slot: int) -> None:
        self._texts.pop(slot, None)

    def observe(self, committed: Committed) -> None:
        for slot, tokens, count in zip(
            committed.slots.tolist(), committed.tokens.tolist(), committed.counts.tolist(), strict=True
        ):
            if slot in self._texts:
                self._texts[slot] += tokens[:count]

    def follow(self, rows: CacheRows) -> None:
        for slot, end in zip(rows.slots.tolist(), rows.ends.tolist(), strict=True):
            self._cached[slot] = end

    def num_cached(self, slot: int) -> int:
        return self._cached[slot]

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        assert batch.caches is not None
        trees = root_trees(batch)
        assert trees.evidence is not None
        asked = {}
        for row, slot in enumerate(batch.slots.tolist()):
            if batch.max_nodes[row] > 1:
                end = int(batch.caches.ends[row]) + 1
                assert end == len(self._texts[slot])
                self.late.append(end - self._cached[slot])
                self._cached[slot] = end
                chain = self._chain(self._texts[slot], int(batch.max_nodes[row]) - 1)
                asked[slot] = len(chain)
                count = len(chain) + 1
                trees.tokens[row, 1:count] = chain
                trees.parents[row, 1:count] = np.arange(count - 1)
                trees.evidence[row, 1:count] = 4
                trees.num_nodes[row] = count
        self.asked.append(asked)
        return self._with_laws(trees, batch) if self.is_drawn else trees

    def _chain(self, text: list[int], most: int) -> list[int]:
        chance = self.chance(len(text))
        return [token if self._random.random() < chance else -1 for token in self.future(text)[:most]]

    def _with_laws(self, trees: CandidateTrees, batch: DraftBatch) -> CandidateTrees:
        assert batch.sampling is not None
        is_inner = np.arange(trees.tokens.shape[1]) < trees.num_nodes[:, None] - 1
        is_sampled = np.where(is_inner & (batch.sampling.temperature[:, None] > 0), DRAWN_CHAIN, 0)
        laws = self._random.dirichlet(np.ones(LAW_SIZE), trees.tokens.shape)
        return CandidateTrees(
            trees.tokens,
            trees.parents,
            trees.num_nodes,
            is_sampled.astype(np.int32),
            np.log(laws).astype(np.float32),
            trees.evidence,
        )
