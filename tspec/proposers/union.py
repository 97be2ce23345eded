"""Several proposers in one candidate tree: the candidates whose expected tokens pay for their place in the pass.

Source    where rounds differ, what counts is gain less (the long-run rate of gain) times time: Charnov 1976, the
          marginal value theorem
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tspec.core.pass_costs import PassCosts
from tspec.core.proposer import Committed, Decision, DraftBatch, LearningProposer, RankedProposer, SourceTally
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.proposers.acceptance import first_classes, know_nothing, start_text
from tspec.proposers.acceptance_rows import judge_rows
from tspec.proposers.model_turns import Outlook
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.none import NoProposer
from tspec.proposers.pool import make_pool, ranked
from tspec.proposers.speed import TextSpeeds
from tspec.proposers.tally_rows import Sourced, tally_rows
from tspec.proposers.union_rows import (
    PassPrices,
    choose_nodes,
    merge_rows,
    start_rows,
    weigh_rows,
    write_trees,
)

MOST_LOOKED_UP, LEAST_LOOKED_UP = 15, 3
"""Candidates that a lookup is asked for: more than pay, so that the choice is not the lookup's. Of each text fewer
where many share a pass."""
MARGIN = 0.02
"""Tokens a row that candidates must be expected to bring before texts go from plain decoding to speculation: no
flutter where both are equal."""


class Union:
    """One tree out of those of several proposers; where `costs` rise with nodes, only as many nodes as pay.

    lookups   asked every round, for every row: their candidates cost next to nothing, and are judged by what comes even
              where they are not verified
    costs     of verify passes; PassCosts.flat() takes as many candidates as the limits allow
    others    sources that a subclass asks

    Decides by its inputs alone: the texts, the costs, and the order of calls; never by the time of day.
    """

    def __init__(
        self,
        name: str,
        lookups: Sequence[RankedProposer],
        costs: PassCosts,
        others: Sequence[RankedProposer] = (),
    ) -> None:
        self.name = name
        self.last_decision = Decision(0.0, 0.0, 0.0, 0.0, 0.0, ())
        self._sources = [*lookups, *others]
        self._num_lookups = len(lookups)
        self._costs, self._context_s, self._node_s = costs, costs.by_context(), np.zeros(0)
        self._first_class, self._known = first_classes(self._sources), know_nothing(self._sources)
        self._speeds = TextSpeeds()
        self._pool = make_pool(1, len(self._sources))
        self._trees: CandidateTrees | None = None
        self._row_of: dict[int, int] = {}
        self._is_on = False
        self._tallies = np.zeros((len(self._sources), 3), dtype=np.int64)
        self._saved, self._seconds = np.zeros((2, len(self._sources)))

    def warm_up(self) -> None:
        """Compile or load every native function, so that no request waits for it."""
        one = np.ones(1, dtype=np.int32)
        spare = Union(
            self.name, [NgramProposer(SpeculativeConfig("ngram", num_speculative_tokens=1))], self._costs
        )
        spare.admit(0, np.array([1, 1, 1], dtype=np.int32))
        spare.propose(DraftBatch(one - 1, one, one + 2, contexts=one))
        spare.observe(Committed(one - 1, one[None], one, one - 1))

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start a sequence: `prompt` int32 [n] are its committed tokens so far. A slot in use starts over."""
        self._row_of.pop(slot, None)
        self._known = start_text(self._known, slot)
        self._speeds.start(slot)
        for source in self._sources:
            source.admit(slot, prompt)

    def release(self, slot: int) -> None:
        """Forget a sequence. Unknown slots are ignored."""
        self._row_of.pop(slot, None)
        for source in self._sources:
            source.release(slot)

    def tallies(self) -> dict[str, SourceTally]:
        """What became of the candidates of each source, by its name, from the start on."""
        return {
            source.name: SourceTally(trees, candidates, accepted, saved, seconds)
            for source, (trees, candidates, accepted), saved, seconds in zip(
                self._sources,
                self._tallies.tolist(),
                self._saved.tolist(),
                self._seconds.tolist(),
                strict=True,
            )
        }

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """Return one tree a row, with the sources of its nodes; the root alone where no candidate pays."""
        rows = len(batch.slots)
        if batch.max_nodes.max() == 1:  # nobody wants candidates: nothing to weigh, and nothing to learn from
            self._trees, self._row_of = None, {}
            return NoProposer().propose(batch)
        self._row_of = {slot: row for row, slot in enumerate(batch.slots.tolist())}
        self._make_room(batch)
        start_rows(self._pool, batch.roots)
        most = max(LEAST_LOOKED_UP, min(MOST_LOOKED_UP, MAX_NODES // rows))
        wide = replace(batch, max_nodes=np.where(batch.max_nodes > 1, np.int32(1 + most), np.int32(1)))
        for number in range(self._num_lookups):
            self._ask(number, wide)
        self._trees = self._after_lookups(batch, self._choose(batch))
        return self._trees

    def observe(self, committed: Committed) -> None:
        """Learn what was committed: which candidates were right, and what the texts got from them."""
        slots = committed.slots.tolist()
        rows = np.array([self._row_of.pop(slot, -1) for slot in slots], dtype=np.int32)
        came = (np.ascontiguousarray(committed.tokens, dtype=np.int32), committed.counts)
        if self._trees is not None:
            judge_rows(self._known, self._pool, rows, committed.slots, *came)
            trees = self._trees
            assert trees.sources is not None
            given = Sourced(trees.tokens, trees.parents, trees.num_nodes, trees.sources)
            tally_rows(self._tallies, self._saved, given, rows, *came)
            self._speeds.add(self.last_decision, slots, rows, committed.counts)
        for source in self._sources:
            source.observe(committed)

    def learn(self, response: np.ndarray) -> None:
        """Let the sources that can take in a text, int32 [n], as if a request had ended with it."""
        for source in self._sources:
            if isinstance(source, LearningProposer):
                source.learn(response)

    def _after_lookups(self, batch: DraftBatch, outlook: Outlook) -> CandidateTrees:
        """The round's trees, once lookups have been asked and weighed."""
        if not self._is_on and outlook.gain < MARGIN * len(batch.slots):
            self._pool.is_chosen[: len(batch.slots)] = False
            self._pool.gains[: len(batch.slots)] = 0
            outlook = replace(outlook, gain=0.0, pass_s=outlook.plain_s)
        return self._decide(batch, outlook, 0.0)

    def _decide(self, batch: DraftBatch, outlook: Outlook, draft_s: float) -> CandidateTrees:
        """Write the chosen trees, and what is expected of them."""
        rows = len(batch.slots)
        gains = float(self._pool.gains[:rows].sum())
        self._is_on = gains > 0
        speed_ups = self._speeds.of(batch.slots)
        self.last_decision = Decision(
            rows + gains, outlook.pass_s, outlook.plain_s, draft_s, outlook.rate, speed_ups
        )
        return self._write(rows)

    def _ask(self, number: int, batch: DraftBatch) -> CandidateTrees:
        """Let a source propose, and put what it gives into the pool."""
        start_s = time.perf_counter()
        trees = self._sources[number].propose(batch)
        self._seconds[number] += time.perf_counter() - start_s
        merge_rows(self._pool, ranked(trees), self._first_class[number], number)
        return trees

    def _choose(self, batch: DraftBatch) -> Outlook:
        """Weigh all candidates of the pool, and mark those that pay."""
        rows = len(batch.slots)
        contexts = np.zeros(rows, dtype=np.int32) if batch.contexts is None else batch.contexts
        plain_s = self._node_s[rows] + float(contexts.sum()) * self._context_s[1]
        rate = float(np.mean(self._speeds.of(batch.slots)) * rows / plain_s)
        prices = PassPrices(
            contexts, self._node_s, self._context_s, batch.num_beside, rate, self._costs.is_padded
        )
        weigh_rows(self._pool, self._known, batch.slots)
        return Outlook(contexts, rate, *map(float, choose_nodes(self._pool, batch.max_nodes, prices)))

    def _write(self, rows: int) -> CandidateTrees:
        tokens, parents, sources = np.empty((3, rows, MAX_NODES), dtype=np.int32)
        num_nodes = np.empty(rows, dtype=np.int32)
        width = write_trees(self._pool, tokens, parents, sources, num_nodes)
        tokens, parents, sources = (
            np.ascontiguousarray(each[:, :width]) for each in (tokens, parents, sources)
        )
        return CandidateTrees(tokens, parents, num_nodes, sources=sources)

    def _pass_s(self, num_nodes: np.ndarray, contexts: np.ndarray, num_beside: int) -> float:
        """Predicted seconds of a pass over so many nodes of each row."""
        total = int(num_nodes.sum()) + num_beside
        return float(self._node_s[total] + (contexts * self._context_s[num_nodes]).sum())

    def _make_room(self, batch: DraftBatch) -> None:
        rows = len(batch.slots)
        if rows > len(self._pool.counts):
            self._pool = make_pool(max(rows, 2 * len(self._pool.counts)), len(self._sources))
        most = rows * MAX_NODES * (2 if self._costs.is_padded else 1) + batch.num_beside
        if most >= len(self._node_s):
            self._node_s = self._costs.by_nodes(2 * most)
