"""Several proposers in one candidate tree: the candidates whose expected tokens pay for their place in the pass.

Source    where rounds differ, what counts is gain less (the long-run rate of gain) times time: Charnov 1976, the
          marginal value theorem
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tspec.core.pass_costs import PassCosts
from tspec.core.proposer import (
    Committed,
    Decision,
    DraftBatch,
    LearningProposer,
    RankedProposer,
    SourceTally,
)
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.proposers.acceptance import first_classes, know_nothing, start_text
from tspec.proposers.asking import Asking
from tspec.proposers.model_turns import Outlook
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.none import NoProposer
from tspec.proposers.pace import Pace
from tspec.proposers.pool import make_pool, ranked
from tspec.proposers.speed import TextSpeeds
from tspec.proposers.tally_rows import Sourced
from tspec.proposers.union_round import gather_rows, learn_rows, note_gains
from tspec.proposers.union_rows import PassPrices, write_trees

MOST_LOOKED_UP, LEAST_LOOKED_UP = 15, 3
"""Candidates that a lookup is asked for: more than pay, so that the choice is not the lookup's. Of each text fewer
where many share a pass."""
MARGIN = 0.02
"""Tokens a row that candidates must be expected to bring before texts go from plain decoding to speculation: no
flutter where both are equal."""


class Union:
    """One tree out of those of several proposers; where `costs` rise with nodes, only as many nodes as pay.

    lookups   asked for each text in every round, or in every eighth where their candidates bring less than the asking
              costs: all are judged by what comes even where they are not verified
    costs     of verify passes; PassCosts.flat() takes as many candidates as the limits allow
    others    sources that a subclass asks
    clock     seconds, to time what sources take

    Decides by its inputs alone: the texts, costs, measured times of passes, the clock, and the order of calls.
    """

    def __init__(
        self,
        name: str,
        lookups: Sequence[RankedProposer],
        costs: PassCosts,
        others: Sequence[RankedProposer] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self.last_decision = Decision(0.0, 0.0, 0.0, 0.0, 0.0)
        self._sources = [*lookups, *others]
        self._num_lookups, self._clock = len(lookups), clock
        self._costs, self._context_s, self._pace = costs, costs.by_context(), Pace(costs)
        self._first_class = np.array(first_classes(self._sources), dtype=np.int64)
        self._known = know_nothing(self._sources)
        self._speeds, self._asking = TextSpeeds(), Asking()
        self._pool = make_pool(1, len(self._sources))
        self._trees: CandidateTrees | None = None
        self._row_of: dict[int, int] = {}
        self._unseen: list[Committed] = []
        self._num_nodes = 0
        self._is_on = False
        self._tallies = np.zeros((len(self._sources), 3), dtype=np.int64)
        self._saved, self._seconds = np.zeros((2, len(self._sources)))

    def warm_up(self) -> None:
        """Compile or load every native function, so that no request waits for it."""
        one = np.ones(1, dtype=np.int32)
        config = SpeculativeConfig("ngram", num_speculative_tokens=1)
        lookups = [NgramProposer(config) for _ in range(self._num_lookups)]
        spare = Union(self.name, lookups, self._costs)
        spare.admit(0, np.array([1, 1, 1], dtype=np.int32))
        for limit in (1, 2):
            spare.propose(DraftBatch(one - 1, one, one + limit, contexts=one))
            spare.observe(Committed(one - 1, one[None], one, one - 1, pass_s=1.0))

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start a sequence: `prompt` int32 [n] are its committed tokens so far. A slot in use starts over."""
        self._catch_up()
        self._row_of.pop(slot, None)
        self._known = start_text(self._known, slot)
        self._speeds.start(slot)
        self._asking.start(slot)
        for source in self._sources:
            source.admit(slot, prompt)

    def release(self, slot: int) -> None:
        """Forget a sequence. Unknown slots are ignored."""
        self._catch_up()
        self._row_of.pop(slot, None)
        for source in self._sources:
            source.release(slot)

    def learn(self, response: np.ndarray) -> None:
        """Let the sources that can take in a text, int32 [n], as if a request had ended with it."""
        for source in self._sources:
            if isinstance(source, LearningProposer):
                source.learn(response)

    def tallies(self) -> dict[str, SourceTally]:
        """What became of the candidates of each source, by its name, from the start on."""
        columns = (self._sources, self._tallies.tolist(), self._saved.tolist(), self._seconds.tolist())
        return {
            source.name: SourceTally(trees, candidates, accepted, saved, seconds)
            for source, (trees, candidates, accepted), saved, seconds in zip(*columns, strict=True)
        }

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """Return one tree a row, with the sources of its nodes; the root alone where no candidate pays."""
        due = self._due(batch)
        if not due.any():
            return self._plain(batch)
        self._row_of = {slot: row for row, slot in enumerate(batch.slots.tolist())}
        if len(batch.slots) > len(self._pool.counts):
            self._pool = make_pool(max(len(batch.slots), 2 * len(self._pool.counts)), len(self._sources))
        self._catch_up()
        most = 1 + max(LEAST_LOOKED_UP, min(MOST_LOOKED_UP, MAX_NODES // len(batch.slots)))
        wide = DraftBatch(batch.slots, batch.roots, np.where(due, np.int32(most), np.int32(1)))
        given = [self._ask(number, wide) for number in range(self._num_lookups)]
        outlook = self._gather(batch, given, 0)
        note_gains(self._pool, self._speeds.rows, batch.slots, due, outlook.gain)
        self._trees = self._after_lookups(batch, outlook)
        return self._trees

    def observe(self, committed: Committed) -> None:
        """Learn what was committed: which candidates were right, and what the texts got from them."""
        slots = committed.slots.tolist()
        rows = np.array([self._row_of.pop(slot, -1) for slot in slots], dtype=np.int32)
        decision = self.last_decision
        trees = self._trees
        if trees is not None and trees.sources is not None:
            tokens = np.ascontiguousarray(committed.tokens, dtype=np.int32)
            given = Sourced(trees.tokens, trees.parents, trees.num_nodes, trees.sources)
            books = (self._known, self._speeds.rows, given, self._tallies, self._saved)
            num_passes = (decision.pass_s + decision.draft_s) / decision.plain_s
            learn_rows(self._pool, *books, rows, committed.slots, tokens, committed.counts, num_passes)
        if committed.pass_s > 0 and self._num_nodes > 0:
            self._pace.note(self._num_nodes, decision.pass_s, committed.pass_s)
            self._num_nodes = 0
        self._unseen.append(committed)
        for source in self._sources[self._num_lookups :]:
            source.observe(committed)

    def _due(self, batch: DraftBatch) -> np.ndarray:
        """Whose lookups are asked: not of texts that want no candidates, seldom of those where it does not pay.

        All of them where a model proposes, too: what it is worth depends on what they give.
        """
        if len(self._sources) > self._num_lookups:
            return batch.max_nodes > 1
        least = self._costs.ask_s * self.last_decision.rate / len(batch.slots)
        gains = self._speeds.rows.gains[batch.slots]
        return self._asking.due(batch.slots.tolist(), gains, least) & (batch.max_nodes > 1)

    def _plain(self, batch: DraftBatch) -> CandidateTrees:
        """A round in which nobody is asked: nothing to weigh, and nothing to learn but the pass's time."""
        self._trees, self._row_of = None, {}
        trees = NoProposer().propose(batch)
        plain_s = self._pass_s(trees.num_nodes, self._prices(batch))
        self.last_decision = Decision(len(batch.slots), plain_s, plain_s, 0.0, self.last_decision.rate)
        self._num_nodes = 0 if batch.num_beside else len(batch.slots)
        return trees

    def _catch_up(self) -> None:
        """Tell the lookups what was committed since they were asked last."""
        for committed in self._unseen:
            for source in self._sources[: self._num_lookups]:
                source.observe(committed)
        self._unseen.clear()

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
        self.last_decision = Decision(rows + gains, outlook.pass_s, outlook.plain_s, draft_s, outlook.rate)
        trees = self._write(batch)
        self._num_nodes = 0 if batch.num_beside else int(trees.num_nodes.sum())
        return trees

    def _ask(self, number: int, batch: DraftBatch) -> CandidateTrees:
        start_s = self._clock()
        trees = self._sources[number].propose(batch)
        self._seconds[number] += self._clock() - start_s
        return trees

    def _gather(self, batch: DraftBatch, given: Sequence[CandidateTrees], first_source: int) -> Outlook:
        """Put what sources gave into the pool, weigh all candidates, and mark those that pay."""
        prices = self._prices(batch)
        arrays = (batch.slots, batch.roots, batch.max_nodes)
        numbers = (self._first_class, first_source, arrays, prices)
        trees = tuple(ranked(each) for each in given)
        found = gather_rows(self._pool, self._known, self._speeds.rows, trees, *numbers)
        return Outlook(prices, found[3], *found[:3])

    def _prices(self, batch: DraftBatch) -> PassPrices:
        rows = len(batch.slots)
        contexts = np.zeros(rows, dtype=np.int32) if batch.contexts is None else batch.contexts
        is_padded = self._costs.is_padded
        node_s = self._pace.node_s(rows * MAX_NODES * (2 if is_padded else 1) + batch.num_beside)
        return PassPrices(contexts, node_s, self._context_s, batch.num_beside, 0.0, is_padded)

    def _write(self, batch: DraftBatch) -> CandidateTrees:
        rows = len(batch.slots)
        tokens, parents, sources = np.empty((3, rows, int(batch.max_nodes.max())), dtype=np.int32)
        num_nodes = np.empty(rows, dtype=np.int32)
        write_trees(self._pool, tokens, parents, sources, num_nodes)
        return CandidateTrees(tokens, parents, num_nodes, sources=sources)

    def _pass_s(self, num_nodes: np.ndarray, prices: PassPrices) -> float:
        """Predicted seconds of a pass over so many nodes of each row."""
        total = int(num_nodes.sum()) + prices.num_beside
        return float(prices.node_s[total] + (prices.contexts * self._context_s[num_nodes]).sum())
