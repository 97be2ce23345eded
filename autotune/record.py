"""What a proposer's model says at every place of a text: it is asked in an engine that decodes plainly."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.rounds import Game, Played, right_path
from autotune.texts import Text, answer
from tspec.core.pass_costs import PassCosts
from tspec.core.policy import RoundCosts
from tspec.core.proposer import CachingProposer, Committed, DraftBatch, Proposer
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.proposers.model_turns import DraftCosts, time_rounds
from tspec.proposers.none import NoProposer
from tspec.requests.text_engine import TextEngine


@dataclass(frozen=True, slots=True)
class Guess:
    """One tree: tokens and parents of its nodes, root first, their classes of evidence, and the seconds it took."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    evidence: tuple[int, ...]
    seconds: float


class Listener:
    """Stands in a proposer's place: asks it in every round for all it has, and gives the engine roots alone.

    A row that has no room for candidates is not asked.
    """

    def __init__(self, proposer: Proposer, max_nodes: int) -> None:
        self.name = proposer.name
        self.guesses: list[Guess | None] = []
        self._proposer, self._max_nodes = proposer, max_nodes

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start a sequence."""
        self._proposer.admit(slot, prompt)

    def observe(self, committed: Committed) -> None:
        """Pass on what was committed."""
        self._proposer.observe(committed)

    def release(self, slot: int) -> None:
        """Forget a sequence."""
        self._proposer.release(slot)

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """Note what the proposer says of the first row."""
        guess = None
        if batch.max_nodes[0] > 1:
            wide = replace(batch, max_nodes=np.full_like(batch.max_nodes, self._max_nodes))
            start_s = time.perf_counter()
            trees = self._proposer.propose(wide)
            seconds, count = time.perf_counter() - start_s, int(trees.num_nodes[0])
            none = np.zeros_like(trees.tokens)
            evidence = none if trees.evidence is None else trees.evidence
            rows = (each[0, :count].tolist() for each in (trees.tokens, trees.parents, evidence))
            tokens, parents, classes = map(tuple, rows)
            guess = Guess(tokens, parents, classes, seconds)
        self.guesses.append(guess)
        return NoProposer().propose(batch)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a model said behind each token of texts but the last: guesses[text][place]."""

    name: str
    texts: list[Text]
    guesses: list[list[Guess | None]]

    @property
    def seconds(self) -> float:
        """Median time of a round that takes in one token."""
        return statistics.median(each.seconds for text in self.guesses for each in text if each is not None)

    def judged(self) -> Iterator[tuple[Sequence[int], Sequence[int], list[int]]]:
        """Of each tree its parents, its evidence, and the nodes that are right."""
        for text, guesses in zip(self.texts, self.guesses, strict=True):
            for place, each in enumerate(guesses):
                if each is not None:
                    path = right_path(each.tokens, each.parents, text.output[place + 1 :])
                    yield each.parents, each.evidence, path


def record(
    engine: TextEngine, prompts: Sequence[Sequence[int]], max_tokens: int, *, most_candidates: int
) -> Recorded:
    """Decode prompts plainly, and ask the engine's proposer at every place, for at most so many candidates."""
    inner = engine.opened()
    texts, guesses, proposer = [], [], inner.proposer
    for prompt in prompts:
        listener = Listener(proposer, min(MAX_NODES, most_candidates + 1))
        inner.proposer = listener
        try:
            texts.append(answer(engine, prompt, max_tokens, speculates=True).text)
        finally:
            inner.proposer = proposer
        guesses.append(listener.guesses)
    return Recorded(proposer.name, texts, guesses)


def play_recorded(
    recorded: Recorded, costs: PassCosts, rounds: RoundCosts, most_candidates: int, depth: int | None = None
) -> Played:
    """Play rounds of a model with at most so many candidates.

    depth   levels that a round runs; None: as many as candidates, for a chain
    """
    game, levels = Game(costs), depth or most_candidates
    draft_s = rounds.first_s + (levels - 1) * rounds.level_s
    for text, guesses in zip(recorded.texts, recorded.guesses, strict=True):
        place, late = 0, 1
        while place < len(guesses):
            guess, after = guesses[place], text.output[place + 1 :]
            tokens: Sequence[int] = (0,) if guess is None else guess.tokens[: most_candidates + 1]
            parents = [-1] if guess is None else list(guess.parents[: most_candidates + 1])
            path = right_path(tokens, parents, after)
            seconds = 0.0 if guess is None else draft_s + (late - 1) * rounds.token_s
            late = game.round(parents, path, len(text.prompt) + place, max(1, len(after)), seconds)
            place += late
    return game.played


def time_first(proposer: Proposer, depth: int, max_model_len: int) -> DraftCosts | None:
    """Time rounds of a model as an engine does at its start, before anything runs. None for one without a cache."""
    return time_rounds(proposer, depth, max_model_len) if isinstance(proposer, CachingProposer) else None


def rounds_of(timed: DraftCosts | None, recorded: Recorded, depth: int) -> RoundCosts:
    """What rounds take: their parts as they were timed by themselves, in all as long as they took between passes."""
    if timed is None:
        return RoundCosts(recorded.seconds, 0.0, 0.0)
    slower = recorded.seconds / timed.of(depth, 1, 1.0)
    return RoundCosts(slower * timed.first_s, slower * timed.level_s, slower * timed.token_s)
