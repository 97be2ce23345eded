"""A union of lookups and one model with a cache of its own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tspec.core.pass_costs import PassCosts
from tspec.core.proposer import CacheRows, CachingProposer, DraftBatch, RankedProposer
from tspec.core.tree import NO_PARENT, CandidateTrees
from tspec.proposers.model_turns import ModelTurns, Outlook, Turn
from tspec.proposers.union import Union


class CachingUnion(Union):
    """Lookups every round; a model where `turns` decides that its round pays.

    A row whose candidates the model draws at random keeps the model's tree as it is: which row that is was decided
    before anything was drawn, so that the test of drawn candidates stays exact.
    """

    def __init__(
        self,
        name: str,
        lookups: Sequence[RankedProposer],
        model: Any,
        turns: ModelTurns,
        costs: PassCosts,
    ) -> None:
        """`model` is a RankedProposer and a CachingProposer."""
        assert isinstance(model, RankedProposer) and isinstance(model, CachingProposer)
        super().__init__(name, lookups, costs, (model,))
        self._model: CachingProposer = model
        self._turns = turns
        self.num_slots = model.num_slots

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start a sequence; see Union."""
        super().admit(slot, prompt)
        self._turns.start(slot)

    def follow(self, rows: CacheRows) -> None:
        """Take in what a pass over prompts has committed."""
        self._model.follow(rows)

    def num_cached(self, slot: int) -> int:
        """Leading tokens of a sequence that the model's cache holds, or will never need."""
        return self._model.num_cached(slot)

    def _after_lookups(self, batch: DraftBatch, outlook: Outlook) -> CandidateTrees:
        turn = self._plan(batch, outlook)
        self._turns.note(batch.slots.tolist(), turn)
        if turn.depth == 0:
            return super()._after_lookups(batch, outlook)
        asked = np.ones(len(batch.slots), dtype=np.int32)
        most = 1 + turn.depth * self._turns.per_level
        asked[turn.rows] = np.minimum(batch.max_nodes[turn.rows], most)
        grown = self._ask(self._num_lookups, replace(batch, max_nodes=asked))
        outlook = self._gather(batch, [grown], self._num_lookups)
        if grown.draft_logprobs is not None:
            return self._with_drawn(batch, outlook, turn, grown)
        return self._decide(batch, outlook, turn.seconds)

    def _plan(self, batch: DraftBatch, outlook: Outlook) -> Turn:
        caches, known = batch.caches, self._known
        assert caches is not None, "the loop gives a CachingProposer where its caches are"
        slots = batch.slots.tolist()
        late = [
            end + 1 - self.num_cached(slot) for end, slot in zip(caches.ends.tolist(), slots, strict=True)
        ]
        return self._turns.plan(
            batch,
            outlook,
            self._pool.gains[: len(slots)],
            known.depth_hits[self._num_lookups, batch.slots],
            known.depth_trials[self._num_lookups, batch.slots],
            np.maximum(1, late),
        )

    def _with_drawn(
        self, batch: DraftBatch, outlook: Outlook, turn: Turn, drawn: CandidateTrees
    ) -> CandidateTrees:
        """The model's own trees in the rows of its turn, the lookups' in all others."""
        assert drawn.draft_logprobs is not None and drawn.is_sampled is not None
        self._pool.is_chosen[turn.rows] = False
        trees = self._decide(batch, outlook, turn.seconds)
        assert trees.sources is not None
        width = max(trees.tokens.shape[1], int(drawn.num_nodes.max()))
        shape = len(batch.slots), width
        tokens, parents = np.zeros(shape, dtype=np.int32), np.full(shape, NO_PARENT, dtype=np.int32)
        sources, is_sampled = np.zeros((2, *shape), dtype=np.int32)
        logprobs = np.zeros((*shape, drawn.draft_logprobs.shape[2]), dtype=np.float32)
        for mine, found in ((tokens, trees.tokens), (parents, trees.parents), (sources, trees.sources)):
            mine[:, : found.shape[1]] = found
        num_nodes, end = trees.num_nodes.copy(), min(width, drawn.tokens.shape[1])
        num_nodes[turn.rows] = drawn.num_nodes[turn.rows]
        for row in turn.rows.tolist():
            tokens[row, :end], parents[row, :end] = drawn.tokens[row, :end], drawn.parents[row, :end]
            sources[row, 1 : num_nodes[row]] = 1 << self._num_lookups
            is_sampled[row, :end] = drawn.is_sampled[row, :end]
            logprobs[row, :end] = drawn.draft_logprobs[row, :end]
        self.last_decision = replace(self.last_decision, pass_s=self._pass_s(num_nodes, outlook.prices))
        self._num_nodes = 0 if batch.num_beside else int(num_nodes.sum())
        return CandidateTrees(tokens, parents, num_nodes, is_sampled, logprobs, sources=sources)
