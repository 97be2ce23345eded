"""What an engine did, in numbers: counted by the loop as it goes, read as a snapshot at any time.

Counts what happens to tokens, requests and passes. Times no kernel, and keeps nothing of a single request, which has
SequenceStats of its own. To count is to add plain integers: no lock, and nothing that grows with the requests.
"""

import time
from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, zip_longest
from typing import Any

from tspec.core.proposer import SourceTally
from tspec.core.tree import MAX_NODES, NO_PARENT, CandidateTrees
from tspec.graph.plan import Bucket
from tspec.runtime.scheduler import Scheduler
from tspec.runtime.sequence import FinishReason, Sequence
from tspec.runtime.speed_up import RoundTimes

BOUNDS_S = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
)
"""Upper bounds of the buckets of all durations, each within its bucket."""

_CHAIN_PARENTS = list(range(NO_PARENT, MAX_NODES - 1))

GAUGES = frozenset({"num_running", "num_waiting", "kv_usage"})
"""What a snapshot says of its moment; all else is counted from the engine's start."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How often something took how long.

    counts   up to BOUNDS_S[0], from there up to BOUNDS_S[1], and so on; the last is what took longer
    total_s  all durations together
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    total_s: float = 0.0

    @property
    def count(self) -> int:
        """How often, in all."""
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        """The mean duration, None before the first."""
        return self.total_s / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """The counters of an engine at one moment, from its start on; those of GAUGES are of the moment itself.

    kv_usage                fraction of the KV blocks that requests refer to
    elapsed_s               seconds that the counts cover
    requests                those that ended, by finish reason
    num_prompt_tokens       of requests that got their first token
    num_prefilled           tokens that prefill computed, those of preempted requests again; of a prompt that went along
                            with others' rounds all but the last, the root of its first tree
    num_queried             tokens that were looked up among what other requests had computed
    num_reused              those of them that were there, and so needed no pass
    num_emitted             tokens given to requests: what follows a stop in an accepted run is not among them
    num_from_prefill        those of them that prefill gave: they belong to no verify pass
    num_trees               candidate trees in verify passes, one a request and pass; a lone root is a tree, too
    num_candidates          candidates in them that were really there, whatever the limit was
    candidates_by_position  trees with a candidate at depth 1, 2, …
    accepted_by_position    trees of which a candidate at depth 1, 2, … was accepted, be it behind a stop
    sources                 what became of the candidates of each proposer, where several propose together
    rounds                  what rounds with candidates took, and the speed-up that follows
    passes                  passes that ran, by kind and bucket: `all 4x16`
    queue_s                 from a request to its first KV blocks
    time_to_first_token_s   from a request to its first token
    inter_token_s           from tokens of a request to its next; those that came together count once
    time_per_token_s        mean of a request that reached its own end, from its first token on
    e2e_s                   from a request to its own end
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    elapsed_s: float = 0.0
    requests: Mapping[str, int] = field(default_factory=lambda: {reason.value: 0 for reason in FinishReason})
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_prefilled: int = 0
    num_queried: int = 0
    num_reused: int = 0
    num_emitted: int = 0
    num_from_prefill: int = 0
    num_trees: int = 0
    num_candidates: int = 0
    candidates_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    rounds: RoundTimes = field(default_factory=RoundTimes)
    sources: Mapping[str, SourceTally] = field(default_factory=dict)
    passes: Mapping[str, int] = field(default_factory=dict)
    queue_s: Durations = Durations()
    time_to_first_token_s: Durations = Durations()
    inter_token_s: Durations = Durations()
    time_per_token_s: Durations = Durations()
    e2e_s: Durations = Durations()

    @property
    def num_drafts(self) -> int:
        """Trees with candidates."""
        return self.candidates_by_position[0] if self.candidates_by_position else 0

    @property
    def num_accepted(self) -> int:
        """Candidates that verify passes accepted."""
        return sum(self.accepted_by_position)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted candidates over all candidates, None before the first."""
        return _ratio(self.num_accepted, self.num_candidates)

    @property
    def acceptance_by_position(self) -> tuple[float | None, ...]:
        """At depth 1, 2, …: accepted over those trees that had a candidate there."""
        return tuple(
            _ratio(accepted, candidates)
            for accepted, candidates in zip(
                self.accepted_by_position, self.candidates_by_position, strict=True
            )
        )

    @property
    def tokens_per_pass(self) -> float | None:
        """Mean num_emitted a tree, bonus included and cut at the first stop; None before the first verify pass."""
        return _ratio(self.num_emitted - self.num_from_prefill, self.num_trees)

    @property
    def reuse_rate(self) -> float | None:
        """Share of looked-up tokens that needed no pass, None before the first."""
        return _ratio(self.num_reused, self.num_queried)

    def since(self, earlier: "EngineMetrics") -> "EngineMetrics":
        """What was counted after an earlier snapshot of the same engine."""
        return EngineMetrics(**{each.name: _since(each.name, self, earlier) for each in fields(self)})


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _since(name: str, later: EngineMetrics, earlier: EngineMetrics) -> Any:
    new, old = getattr(later, name), getattr(earlier, name)
    if name in GAUGES:
        return new
    if name == "sources":
        return {key: tally.since(old.get(key, SourceTally())) for key, tally in new.items()}
    if isinstance(new, Mapping):
        return {key: count - old.get(key, 0) for key, count in new.items()}
    if isinstance(new, tuple):
        return _minus(new, old)
    if isinstance(new, RoundTimes):
        return new.since(old)
    if isinstance(new, Durations):
        return Durations(_minus(new.counts, old.counts), new.total_s - old.total_s)
    return new - old


def _minus(new: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(count - before for count, before in zip_longest(new, old, fillvalue=0))


class _Clock:
    """Durations that still grow."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float | None) -> None:
        if seconds is not None:
            self.counts[bisect_left(BOUNDS_S, seconds)] += 1
            self.total_s += seconds

    def read(self) -> Durations:
        return Durations(tuple(self.counts), self.total_s)


class Counters:
    """What the loop counts as it goes; one thread does.

    `read` may be called from another one. Then it sees a part of a step in progress, and no rate is above 1 still:
    a whole is counted before its part, and the part is read first.
    """

    def __init__(self) -> None:
        self.num_prefilled = 0
        self.rounds = RoundTimes()
        self._start_s = time.perf_counter()
        self._requests = {reason.value: 0 for reason in FinishReason}
        self._num_prompt_tokens = self._num_emitted = self._num_from_prefill = 0
        self._num_trees = self._num_candidates = 0
        self._num_by_depth = [0] * MAX_NODES
        self._num_by_accepted = [0] * MAX_NODES
        self._passes: dict[tuple[str, Bucket], int] = {}
        self._queue, self._first, self._between, self._per_token, self._e2e = (_Clock() for _ in range(5))

    def add_pass(self, kind: str, bucket: Bucket) -> None:
        """Count a pass that ran."""
        self._passes[kind, bucket] = self._passes.get((kind, bucket), 0) + 1

    def add_tree(self, num_candidates: int, depth: int, num_accepted: int) -> None:
        """Count a tree that was verified."""
        self._num_trees += 1
        self._num_candidates += num_candidates
        self._num_by_depth[depth] += 1
        self._num_by_accepted[num_accepted] += 1

    def add_tokens(self, sequence: Sequence, num_emitted: int, last_token_s: float | None) -> None:
        """Count tokens that a sequence just got; `last_token_s` is when it had got those before."""
        if num_emitted == 0:
            return
        stats = sequence.stats
        self._num_emitted += num_emitted
        if last_token_s is None:
            self._num_from_prefill += stats.num_from_prefill
            self._num_prompt_tokens += len(sequence.prompt)
            self._first.add(stats.time_to_first_token_s)
        elif stats.last_token_s is not None:
            self._between.add(stats.last_token_s - last_token_s)

    def add_ended(self, sequence: Sequence) -> None:
        """Count a request that ended. Its times, too, unless it was dropped or failed: those measure no decoding."""
        reason, stats = sequence.finish_reason, sequence.stats
        assert reason is not None, "a request that ended has a reason"
        self._requests[reason.value] += 1
        self._queue.add(stats.queue_s)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._per_token.add(stats.time_per_token_s)
            self._e2e.add(stats.e2e_s)

    def read(self, scheduler: Scheduler) -> EngineMetrics:
        """Return a snapshot, with what the scheduler knows."""
        accepted, num_reused = _reaching(self._num_by_accepted), scheduler.kv.stats.hit_tokens
        candidates = _reaching(self._num_by_depth)
        return EngineMetrics(
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            kv_usage=scheduler.kv.usage,
            elapsed_s=time.perf_counter() - self._start_s,
            requests=dict(self._requests),
            num_preemptions=scheduler.num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_prefilled=self.num_prefilled,
            num_queried=scheduler.kv.stats.queried_tokens,
            num_reused=num_reused,
            num_emitted=self._num_emitted,
            num_from_prefill=self._num_from_prefill,
            num_trees=self._num_trees,
            num_candidates=self._num_candidates,
            candidates_by_position=tuple(candidates),
            accepted_by_position=tuple(accepted + [0] * (len(candidates) - len(accepted))),
            rounds=replace(self.rounds),
            passes={f"{kind} {bucket}": count for (kind, bucket), count in self._passes.copy().items()},
            queue_s=self._queue.read(),
            time_to_first_token_s=self._first.read(),
            inter_token_s=self._between.read(),
            time_per_token_s=self._per_token.read(),
            e2e_s=self._e2e.read(),
        )


def _reaching(num_by_length: List[int]) -> list[int]:
    """From how many have each length to how many are at least 1, 2, … long, up to the longest."""
    at_least = list(accumulate(reversed(num_by_length[1:])))[::-1]
    return [count for count in at_least if count > 0]


def tree_depths(trees: CandidateTrees) -> list[int]:
    """The depth of each tree's deepest node; 0 for a lone root."""
    counts = trees.num_nodes.tolist()
    parents = trees.parents[:, : max(counts)].tolist()
    return [_depth(row[:count]) for row, count in zip(parents, counts, strict=True)]


def _depth(parents: List[int]) -> int:
    if parents == _CHAIN_PARENTS[: len(parents)]:
        return len(parents) - 1
    depths = [0] * len(parents)
    for node, parent in enumerate(parents[1:], start=1):
        depths[node] = depths[parent] + 1
    return max(depths)
