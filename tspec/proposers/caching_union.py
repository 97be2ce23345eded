"""A union of lookups and one model with a cache of its own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tspec.core.pass_costs import PassCosts
from tspec.core.proposer import CacheRows, CachingProposer, DraftBatch, RankedProposer
from tspec.core.tree import NO_PARENT, CandidateTrees
from tspec.proposers.model_turns import ModelTurns, Outlook, Turn, expected_tokens
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
        promises = self._promises(batch)
        gains, before = self._pool.gains[: len(batch.slots)].copy(), self._num_chosen(batch)
        turn = self._turns.plan(batch, outlook, gains, promises, self._num_late(batch))
        self._turns.note(batch.slots.tolist(), turn)
        if turn.depth == 0:
            return super()._after_lookups(batch, outlook)
        asked = np.ones(len(batch.slots), dtype=np.int32)
        most = 1 + turn.depth * self._turns.per_level
        asked[turn.rows] = np.minimum(batch.max_nodes[turn.rows], most)
        grown = self._ask(self._num_lookups, replace(batch, max_nodes=asked))
        both = self._gather(batch, [grown], self._num_lookups)
        if grown.draft_logprobs is None:
            trees = self._decide(batch, both, turn.seconds)
        else:
            promised = promises[turn.rows, turn.depth - 1]
            trees = self._with_drawn(batch, both, turn, grown, promised)
        came = self._pool.gains[: len(gains)] - gains
        num_nodes = trees.num_nodes - 1 - before
        arrays = (gains, promises, came, num_nodes)
        self._turns.learn(turn, *(each[turn.rows] for each in arrays))
        return trees

    def _num_chosen(self, batch: DraftBatch) -> np.ndarray:
        """Candidates of each row that were chosen so far, [B]."""
        rows = len(batch.slots)
        is_there = np.arange(self._pool.tokens.shape[1]) < self._pool.counts[:rows, None]
        return (self._pool.is_chosen[:rows] & is_there).sum(axis=1)

    def _promises(self, batch: DraftBatch) -> np.ndarray:
        hits, trials = self._known.depth_hits, self._known.depth_trials
        number = self._num_lookups
        return expected_tokens(hits[number, batch.slots], trials[number, batch.slots], self._turns.depth)

    def _num_late(self, batch: DraftBatch) -> np.ndarray:
        """Tokens that the model's cache lacks, its root among them, int32 [B]."""
        caches = batch.caches
        assert caches is not None, "the loop gives a CachingProposer where its caches are"
        cached = [self.num_cached(slot) for slot in batch.slots.tolist()]
        return np.maximum(1, caches.ends + 1 - np.array(cached, dtype=np.int32))

    def _with_drawn(
        self, batch: DraftBatch, outlook: Outlook, turn: Turn, drawn: CandidateTrees, promised: np.ndarray
    ) -> CandidateTrees:
        """The model's own trees in the rows of its turn, which promise so many tokens, the lookups' in all others."""
        assert drawn.draft_logprobs is not None and drawn.is_sampled is not None
        self._pool.is_chosen[turn.rows] = False
        self._pool.gains[turn.rows] = promised
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
