"""Decoding without a model: a union proposes, a known target says what comes, and time is what was predicted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from support.proposing import int32

from tspec.core.pass_costs import PassCosts
from tspec.core.proposer import CacheRows, Committed, DraftBatch, DraftSampling
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import CandidateTrees
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.suffix import SuffixProposer
from tspec.proposers.union import MOST_LOOKED_UP, Union

MEASURED = PassCosts(
    (1, 4, 8, 9, 16, 32),
    (0.0127, 0.01447, 0.0187, 0.0206, 0.0257, 0.0453),
    (1.76e-6, 2.34e-6, 3.8e-6, 4.6e-6, 7.2e-6, 9e-6),
)
"""Those of a model of 135 million parameters on two cores with AVX-512."""
MOST_NODES = 16

Says = Callable[[Union, int, list[int]], int | None]
"""The next token of a text, by the union that guesses it, the row, and the text so far; None at its end."""


@dataclass(frozen=True)
class Round:
    """What a round did: `num_out` tokens and `num_nodes` nodes of each slot, and its predicted seconds."""

    num_out: Mapping[int, int]
    num_nodes: Mapping[int, int]
    seconds: float
    plain_s: float
    draft_s: float


def speed_up(union: Union, slot: int) -> float:
    """What the union takes the text of a slot to get from speculation."""
    rows = union._speeds.rows
    return max(1.0, rows.tokens[slot] / rows.passes[slot])


def lookups(*, shares: bool = True) -> list:
    """Those that are in every union; without `shares`, the one that knows a text by itself alone."""
    asked = SpeculativeConfig("ngram", num_speculative_tokens=MOST_LOOKED_UP)
    own = NgramProposer(asked, grows_with_match=False)
    return [own, SuffixProposer(asked, max_candidates=MOST_LOOKED_UP)] if shares else [own]


def auto(costs: PassCosts = MEASURED, *, shares: bool = True) -> Union:
    """Lookups alone, weighed."""
    return Union("auto", lookups(shares=shares), costs)


def says(*texts: Sequence[int]) -> Says:
    """A target that knows whole texts, whose beginnings are told apart by their first tokens."""
    whole = {text[0]: list(text) for text in texts}

    def next_token(union: Union, row: int, text: list[int]) -> int | None:
        known = whole[text[0]]
        return known[len(text)] if len(text) < len(known) else None

    return next_token


def contradicts(vocab: int, seed: int = 0) -> Says:
    """A target that says what no lookup guesses, and that uses few words, so that there always are guesses."""
    generator = np.random.default_rng(seed)

    def next_token(union: Union, row: int, text: list[int]) -> int:
        count = union._pool.counts[row]
        below_root = np.flatnonzero(union._pool.parents[row, 1:count] == 0) + 1
        guessed = union._pool.tokens[row, below_root].tolist()
        return int(generator.choice([token for token in range(vocab) if token not in guessed]))

    return next_token


class Decoding:
    """Texts that a union is asked for together, each until its target has no more to say."""

    def __init__(self, union: Union, target: Says, *, most_nodes: int = MOST_NODES, num_beside: int = 0):
        self.union, self.target = union, target
        self.most_nodes, self.num_beside = most_nodes, num_beside
        self.texts: dict[int, list[int]] = {}
        self.trees: CandidateTrees | None = None
        self.temperature = 0.0

    def start(self, slot: int, prompt: Sequence[int]) -> None:
        self.texts[slot] = list(prompt)
        self.union.admit(slot, int32(*prompt))

    def end(self, slot: int) -> list[int]:
        self.union.release(slot)
        return self.texts.pop(slot)

    def rounds(self, most: int) -> Iterator[Round]:
        """At most so many, while there are texts; those at their ends leave."""
        for _ in range(most):
            if not self.texts:
                return
            yield self.round()

    def round(self, slots: Sequence[int] | None = None) -> Round:
        """One round of these slots, or of all."""
        slots = sorted(self.texts) if slots is None else list(slots)
        batch = self._batch(slots)
        trees = self.trees = self.union.propose(batch)
        trees.check()
        assert (trees.num_nodes <= batch.max_nodes).all()
        came = [self._verify(trees, row, self.texts[slot]) for row, slot in enumerate(slots)]
        counts, decision = int32(*map(len, came)), self.union.last_decision
        tokens = np.zeros((len(slots), max(1, counts.max())), dtype=np.int32)
        for row, text in enumerate(came):
            tokens[row, : len(text)] = text
        self.union.observe(Committed(batch.slots, tokens, counts, np.maximum(0, counts - 1)))
        for row, slot in enumerate(slots):
            self.texts[slot] += came[row]
            if self.target(self.union, row, self.texts[slot]) is None:
                self.end(slot)
        return Round(
            dict(zip(slots, counts.tolist(), strict=True)),
            dict(zip(slots, trees.num_nodes.tolist(), strict=True)),
            decision.pass_s + decision.draft_s,
            decision.plain_s,
            decision.draft_s,
        )

    def _batch(self, slots: list[int]) -> DraftBatch:
        texts = [self.texts[slot] for slot in slots]
        contexts = int32(*(len(text) - 1 for text in texts))
        rows = len(slots)
        sampling = DraftSampling(
            np.full(rows, self.temperature, np.float32), np.zeros(rows, np.int64), contexts, "ratio"
        )
        return DraftBatch(
            int32(*slots),
            int32(*(text[-1] for text in texts)),
            np.full(rows, self.most_nodes, dtype=np.int32),
            sampling,
            CacheRows(int32(*slots), contexts, np.zeros(rows, np.int32), np.zeros((rows, 1), np.int32)),
            contexts,
            self.num_beside,
        )

    def _verify(self, trees: CandidateTrees, row: int, text: list[int]) -> list[int]:
        """What the target says, as long as a candidate was it, and the bonus token."""
        node, came = 0, list[int]()
        while True:
            token = self.target(self.union, row, text + came)
            if token is None:
                return came
            came.append(token)
            below = [
                child for child in range(node + 1, trees.num_nodes[row]) if trees.parents[row, child] == node
            ]
            right = [child for child in below if trees.tokens[row, child] == token]
            if not right:
                return came
            node = right[0]


def decode(union: Union, prompt: Sequence[int], target: Says, most: int = 10_000) -> list[Round]:
    """All rounds of one text, in slot 0."""
    decoding = Decoding(union, target)
    decoding.start(0, prompt)
    return list(decoding.rounds(most))


def seconds_a_token(rounds: Sequence[Round]) -> float:
    """Predicted seconds a token over those of plain decoding."""
    num_out = sum(sum(each.num_out.values()) for each in rounds)
    passes = sum(len(each.num_out) * each.seconds / each.plain_s for each in rounds)
    return passes / num_out
