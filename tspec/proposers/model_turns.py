"""When a model proposes beside lookups: a round of it costs time before anyone knows what it gives.

So it is decided by what the model's candidates were worth lately, at each depth, in each text. Texts in which it
does not run are tried again now and then, so seldom that the trials of all of them cost next to nothing.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tspec.core.proposer import CacheRows, CachingProposer, Committed, DraftBatch, DraftSampling
from tspec.core.shapes import blocks_for
from tspec.core.tree import MAX_NODES
from tspec.proposers.turn_rows import best_turn
from tspec.proposers.union_rows import PassPrices

TRIAL_SHARE = 0.01
"""Share of the time since the last trial that the next one may take. A model that needs more to take in what came
since is not tried again in that text."""
LEAST_WAIT = 8
"""Rounds between two trials of a text."""
TIMED_LATE = 32
"""Tokens that a round takes in where that is timed."""
KIND_BOUNDS = (0.05, 0.25, 0.75, 1.5)
"""Rounds are told apart by the tokens that lookups promise in them: where these give much, a model adds little."""
PRIOR_SHARES, PRIOR_ROWS = (0.9, 0.8, 0.5, 0.2, 0.0), 16.0
"""Share of a model's promise that it adds in rounds of each kind, before it is known; rows that this counts as."""
MEMORY_ROWS = 100.0
"""Rows of rounds after which a share has forgotten most of what was before."""
MEMORY_TIMES = 16.0
"""The same of how much longer rounds take than was timed."""
MOST_OFF = 0.3
"""As a logarithm, how far a single round is believed to be off: now and then another process has the CPU."""


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """Seconds of a model's round for one sequence.

    first_s   a round of one level that takes in one token
    level_s   each level more
    token_s   each token more that it takes in, where it did not run for a while
    """

    first_s: float
    level_s: float
    token_s: float

    def times(self, factor: float) -> "DraftCosts":
        """All of them so much longer."""
        return DraftCosts(factor * self.first_s, factor * self.level_s, factor * self.token_s)

    def of(self, depth: int, num_late: int, growth: float) -> float:
        """A round of `depth` levels, after `num_late` tokens that it has not seen.

        growth   of a pass of so many rows over one of one row
        """
        return (self.first_s + (depth - 1) * self.level_s) * growth + max(0, num_late - 1) * self.token_s


@dataclass(frozen=True, slots=True)
class Outlook:
    """What lookups promise for a round: see union_rows.choose_nodes."""

    prices: PassPrices
    rate: float
    gain: float
    pass_s: float
    plain_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """For which rows a model proposes, how deep, and what that takes. depth 0: for none."""

    rows: np.ndarray
    depth: int
    seconds: float


NO_TURN = Turn(np.zeros(0, dtype=np.int64), 0, 0.0)


class ModelTurns:
    """Decides for one model, and remembers when it ran last in each text.

    depth     levels of its rounds at most
    per_level nodes of a level that go on; of a chain 1
    """

    def __init__(self, costs: DraftCosts, depth: int, per_level: int) -> None:
        self.costs, self.depth, self.per_level = costs, depth, per_level
        self._timed, self._log_slower = costs, 0.0
        self._waited: dict[int, int] = {}
        self._since_s = 0.0
        # Of rounds of each kind: what was promised and asked for, tokens and nodes, and what came of it.
        self._asked = np.tile([PRIOR_ROWS, PRIOR_ROWS * depth * per_level], (len(PRIOR_SHARES), 1))
        self._came = self._asked * np.stack([PRIOR_SHARES, np.full(len(PRIOR_SHARES), 1 / per_level)], axis=1)

    def start(self, slot: int) -> None:
        """A new text: the model is tried soon."""
        self._waited[slot] = LEAST_WAIT

    def plan(
        self,
        batch: DraftBatch,
        outlook: Outlook,
        gains: np.ndarray,
        promises: np.ndarray,
        num_late: np.ndarray,
    ) -> Turn:
        """Return the turn that is worth most, NO_TURN where lookups alone are.

        Shapes   gains float64 [B]: expected tokens of the lookups' candidates; promises float64 [B, depth]: see
                 expected_tokens; num_late int32 [B]
        """
        node_s = outlook.prices.node_s
        shares = (self._came / self._asked)[_kinds(gains)]
        costs = (self.costs.first_s, self.costs.level_s, self.costs.token_s)
        num_plain = len(batch.slots) + batch.num_beside
        rows, depth, seconds = best_turn(
            batch.max_nodes,
            promises,
            shares,
            num_late,
            costs,
            node_s,
            outlook.rate,
            num_plain,
            self.per_level,
        )
        best = Turn(rows, depth, seconds) if depth else NO_TURN
        return self._with_trials(best, batch, num_late, node_s, outlook.plain_s)

    def learn(
        self, turn: Turn, gains: np.ndarray, promises: np.ndarray, came: np.ndarray, num_nodes: np.ndarray
    ) -> None:
        """Learn what a round of the model was worth, from the rows that it was for.

        Shapes   float64 [rows]: gains as in `plan`; came, tokens that are expected beside these; num_nodes, candidates
                 that were chosen beside the lookups'; float64 [rows, depth]: promises as in `plan`
        """
        levels = np.full(len(gains), turn.depth)
        if self.per_level == 1:  # of a chain as many levels as were worth their nodes
            levels = np.clip(num_nodes, 1, turn.depth)
        promised = promises[np.arange(len(gains)), levels - 1]
        most, fading = levels * self.per_level, 1 - 1 / MEMORY_ROWS
        for row, kind in enumerate(_kinds(gains).tolist()):
            self._asked[kind] = fading * self._asked[kind] + (promised[row], most[row])
            self._came[kind] = fading * self._came[kind] + (came[row], min(num_nodes[row], most[row]))

    def time(self, turn: Turn, seconds: float) -> None:
        """Learn from what a round took, which may be more than at the start. 0 where no time is known."""
        if seconds <= 0:
            return
        off = math.log(seconds / turn.seconds)
        self._log_slower += max(-MOST_OFF, min(MOST_OFF, off)) / MEMORY_TIMES
        self.costs = self._timed.times(math.exp(self._log_slower))

    def note(self, slots: Sequence[int], turn: Turn) -> None:
        """Count a round: the model ran in the rows of `turn`."""
        ran = set(turn.rows.tolist())
        for row, slot in enumerate(slots):
            self._waited[slot] = 0 if row in ran else self._waited.get(slot, 0) + 1

    def _round_s(self, depth: int, rows: np.ndarray, num_late: np.ndarray, node_s: np.ndarray) -> float:
        growth = float(node_s[len(rows)] / node_s[1])
        return self.costs.of(depth, int(num_late[rows].sum()) - len(rows) + 1, growth)

    def _with_trials(
        self,
        turn: Turn,
        batch: DraftBatch,
        num_late: np.ndarray,
        node_s: np.ndarray,
        plain_s: float,
    ) -> Turn:
        """Add rows whose trial is due, as far as time allows: at full depth, as all depths are to be known."""
        self._since_s += plain_s
        waited = [self._waited.get(slot, 0) for slot in batch.slots.tolist()]
        ran, found = set(turn.rows.tolist()), turn
        limits = batch.max_nodes.tolist()
        due = [
            row
            for row, rounds in enumerate(waited)
            if rounds >= LEAST_WAIT and limits[row] > 1 and row not in ran
        ]
        for row in sorted(due, key=lambda row: -waited[row]):
            together = np.union1d(found.rows, [row])
            seconds = self._round_s(self.depth, together, num_late, node_s)
            if seconds - turn.seconds > TRIAL_SHARE * self._since_s:
                break
            found = Turn(together, self.depth, seconds)
        if found is not turn:
            self._since_s = 0.0
        return found


def _kinds(gains: np.ndarray) -> np.ndarray:
    return np.searchsorted(KIND_BOUNDS, gains)


def time_rounds(
    proposer: CachingProposer, depth: int, max_model_len: int, run_pass: Callable[[], object] = lambda: None
) -> DraftCosts:
    """Time rounds of a model for one sequence, on a KV block that nobody uses yet. The least of several counts.

    run_pass    what the target does between rounds: it leaves none of the model's weights in the caches
    """
    num_late = max(2, min(TIMED_LATE, max_model_len // 2))
    least = [np.inf] * 3
    for _ in range(3):
        for number, (levels, late) in enumerate(((1, 1), (depth, 1), (1, num_late))):
            least[number] = min(least[number], _round_s(proposer, levels, late, run_pass))
    first_s, whole_s, late_s = least
    level_s = max(0.0, whole_s - first_s) / (depth - 1) if depth > 1 else 0.0
    return DraftCosts(first_s, level_s, max(0.0, late_s - first_s) / (num_late - 1))


def _round_s(proposer: CachingProposer, levels: int, late: int, run_pass: Callable[[], object]) -> float:
    """A round that takes in `late` tokens."""
    zero, one = np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int32)
    proposer.admit(0, np.zeros(2, dtype=np.int32))
    table = np.zeros((1, blocks_for(late + MAX_NODES)), dtype=np.int32)
    sampling = DraftSampling(np.ones(1, dtype=np.float32), np.zeros(1, dtype=np.int64), one, "auto")
    batch = DraftBatch(zero, zero, one + levels, sampling, CacheRows(zero, one, zero, table))
    proposer.propose(batch)
    new = np.zeros((1, late), dtype=np.int32)
    proposer.observe(Committed(zero, new, one * late, zero))
    caches = CacheRows(zero, one + late, zero, table)
    run_pass()
    start_s = time.perf_counter()
    proposer.propose(replace(batch, caches=caches))
    seconds = time.perf_counter() - start_s
    proposer.release(0)
    return seconds
