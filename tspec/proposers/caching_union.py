"""A union of lookups and one model with a cache of its own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tspec.core.pass_costs import PassCosts
from tspec.core.proposer import CacheRows, CachingProposer, DraftBatch, RankedProposer
from tspec.core.tree import NO_PARENT, CandidateTrees
from tspec.proposers.acceptance import start_text
from tspec.proposers.model_turns import ModelTurns, Outlook, Turn
from tspec.proposers.turn_rows import count_chosen, expected_tokens
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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`model` is a RankedProposer and a CachingProposer; else as Union."""
        assert isinstance(model, RankedProposer) and isinstance(model, CachingProposer)
        super().__init__(name, lookups, costs, (model,), clock)
        self._model: CachingProposer = model
        self._turns = turns
        self.num_slots = model.num_slots

    def warm_up(self) -> None:
        """Compile or load every native function, so that no request waits for it."""
        super().warm_up()
        known, number, one = start_text(self._known, 0), self._num_lookups, np.ones(1, dtype=np.int32)
        turns = ModelTurns(self._turns.costs, self._turns.depth, self._turns.per_level)
        hits, trials = known.depth_hits[number], known.depth_trials[number]
        promises = expected_tokens(hits, trials, one - 1, turns.depth)
        batch = DraftBatch(one - 1, one, one + 1, contexts=one)
        turns.plan(batch, Outlook(self._prices(batch), 1.0, 0.0, 1.0, 1.0), np.zeros(1), promises, one)
        count_chosen(self._pool, 1)

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
        gains, before = (
            self._pool.gains[: len(batch.slots)].copy(),
            count_chosen(self._pool, len(batch.slots)),
        )
        turn = self._turns.plan(batch, outlook, gains, promises, self._num_late(batch))
        self._turns.note(batch.slots.tolist(), turn)
        if turn.depth == 0:
            return super()._after_lookups(batch, outlook)
        asked = np.ones(len(batch.slots), dtype=np.int32)
        most = 1 + turn.depth * self._turns.per_level
        asked[turn.rows] = np.minimum(batch.max_nodes[turn.rows], most)
        before_s = self._seconds[self._num_lookups]
        grown = self._ask(self._num_lookups, replace(batch, max_nodes=asked))
        self._turns.time(turn, float(self._seconds[self._num_lookups] - before_s))
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

    def _promises(self, batch: DraftBatch) -> np.ndarray:
        known, number = self._known, self._num_lookups
        hits, trials = known.depth_hits[number], known.depth_trials[number]
        return expected_tokens(hits, trials, batch.slots, self._turns.depth)  # type: ignore[no-any-return]

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
