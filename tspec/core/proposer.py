"""The proposer protocol: what the runtime loop knows of whatever guesses tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np

from tspec.core.tree import CandidateTrees


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """How the target samples each row, for a proposer that draws its candidates.

    temperature  float32 [B]  0 for greedy rows
    seeds        int64 [B]
    positions    int32 [B]    absolute position of the root; a candidate at depth d stands at position + d
    acceptance   "match": draw with the target's own noise, stream TARGET of core/noise.py at the candidate's place,
                 which makes both agree often; the candidates are matched, and the trees must give no law. "ratio":
                 draw with noise of the draft's own, and give the law (`draft_logprobs`) for the test: draws at depth d
                 take `draft_stream(d)` at the first position after the root, so that they are new in every round.
                 "auto": ratio for a chain, match for drawn siblings (measured: docs/sampling.md)
    """

    temperature: np.ndarray
    seeds: np.ndarray
    positions: np.ndarray
    acceptance: str


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Where the keys and values of each row lie: the KV blocks of a sequence belong to all models that run on it.

    slots        int32 [B]
    ends         int32 [B]  tokens of the text that the target's cache holds
    known        int32 [B]  leading ones that are in blocks which other sequences may share: every cache holds them
    block_table  int32 [B, blocks]
    """

    slots: np.ndarray
    ends: np.ndarray
    known: np.ndarray
    block_table: np.ndarray


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The rows of one round, in the order of the verify pass.

    slots      int32 [B]  the sequence of each row, as given to `admit`
    roots      int32 [B]  newest committed token of each row
    max_nodes  int32 [B]  most nodes a row's tree may have, root included (at least 1)
    sampling   how the target samples; None where that is of no use
    caches     for a CachingProposer
    contexts   int32 [B]  tokens before each root; None where that is of no use
    num_beside tokens of prompts that go along in the same verify pass
    """

    slots: np.ndarray
    roots: np.ndarray
    max_nodes: np.ndarray
    sampling: DraftSampling | None = None
    caches: CacheRows | None = None
    contexts: np.ndarray | None = None
    num_beside: int = 0


@dataclass(frozen=True, slots=True)
class SourceTally:
    """What became of the candidates of one proposer among several.

    num_trees       verify passes of a sequence with candidates of it
    num_candidates  those candidates
    num_accepted    those of them that are in the text now
    num_saved       the same, but candidates that several proposers gave count in equal parts for each: plain passes
                    that were saved. Not an integer
    seconds         that proposing took
    """

    num_trees: int = 0
    num_candidates: int = 0
    num_accepted: int = 0
    num_saved: float = 0.0
    seconds: float = 0.0

    def since(self, earlier: "SourceTally") -> "SourceTally":
        """What was added after `earlier`."""
        return SourceTally(*(getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Decision:
    """What a proposer that weighs candidates against their costs expected of a round.

    expected_tokens   of all rows, bonus tokens included
    pass_s, plain_s   seconds of the verify pass, and of one without candidates
    draft_s           seconds of a model's round before it, 0 for none
    rate              tokens a second that time is worth: what the running texts make of it
    """

    expected_tokens: float
    pass_s: float
    plain_s: float
    draft_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class Committed:
    """What one round committed: row `row` of slot `slots[row]` gained `tokens[row, :counts[row]]`.

    slots int32 [B]; tokens int32 [B, D + 1]; counts int32 [B]; num_accepted int32 [B] counts candidates;
    pass_s seconds of the verify pass, 0 where there was none. The arrays stay as they are: a proposer may keep them.
    """

    slots: np.ndarray
    tokens: np.ndarray
    counts: np.ndarray
    num_accepted: np.ndarray
    pass_s: float = 0.0


class Proposer(Protocol):
    """Guesses what the target will say.  A poor guess costs time; it can never change the output.

    A sequence's life is `admit`, then rounds of `propose` and `observe`, then `release`. A proposer
      - answers every row, in order; a tree with only its root is a legal answer
      - marks nothing as accepted itself: it learns in `observe`, token by token, what was committed
      - owns its own memory, and never sees the target's KV
      - that draws candidates at random says so, and gives the law that it drew them from (`CandidateTrees`): whether
        a place is proposed for at all depends on what is before it, never on what was drawn there
    """

    name: str

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start a sequence: `prompt` int32 [n] are its committed tokens so far."""

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """Return one tree a row, each with at most `batch.max_nodes[row]` nodes."""

    def observe(self, committed: Committed) -> None:
        """Learn what was committed."""

    def release(self, slot: int) -> None:
        """Give back everything held for this sequence. Unknown slots are ignored."""


@runtime_checkable
class RankedProposer(Proposer, Protocol):
    """A proposer that says what speaks for each candidate, so that candidates of several can be weighed.

    Each candidate of its trees falls into a class of evidence (`CandidateTrees.evidence`), such as the length of the
    match that it continues. How often those of a class are right is learned from the text that really comes.

    priors  float32 [C]  chance that a candidate of each class is the next token where all before it are right,
                         before anything is known
    """

    priors: np.ndarray

    def warm_up(self) -> None:
        """Compile or load every native function, so that no request waits for it."""


@runtime_checkable
class LearningProposer(Proposer, Protocol):
    """A proposer that learns from texts that no request said."""

    def learn(self, response: np.ndarray) -> None:
        """Take in a text, int32 [n], as if a request had ended with it."""


@runtime_checkable
class WeighingProposer(Proposer, Protocol):
    """A proposer of several sources that decides itself how many candidates pay in a pass.

    last_decision   what it expected of the last round
    """

    last_decision: Decision

    def tallies(self) -> Mapping[str, SourceTally]:
        """What became of the candidates of each source, by its name, from the start on."""


@runtime_checkable
class CachingProposer(Proposer, Protocol):
    """A proposer whose model keeps keys and values of its own, in the same block numbers as the target's.

    Its cache is never ahead of the committed text. Blocks become known to other sequences only as far as it goes, so
    that who shares a block finds both caches there.

    num_slots   slots behind the root that a round of it writes
    """

    num_slots: int

    def follow(self, rows: CacheRows) -> None:
        """Take in what a pass over prompts has committed."""

    def num_cached(self, slot: int) -> int:
        """Leading tokens of a sequence that its cache holds, or will never need."""
