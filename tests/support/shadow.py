"""A model proposes beside random trees, which decide what is accepted; what it would have proposed is remembered."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from support.engines import RandomTrees

from tspec.core.proposer import CacheRows, CachingProposer, Committed, DraftBatch
from tspec.core.sampling_params import SamplingParams
from tspec.core.tree import CandidateTrees
from tspec.runtime.loop import Engine


@dataclass(frozen=True)
class Proposal:
    """What was proposed behind a text.

    nodes       (parent, token) of each candidate
    law         log-probabilities of each node whose child was drawn
    """

    text: tuple[int, ...]
    max_nodes: int
    temperature: float
    seed: int
    nodes: tuple[tuple[int, int], ...]
    law: tuple[bytes, ...] = ()


class Shadow(RandomTrees):
    """Gives the target random trees that know its texts in part, so that any run of candidates may be accepted.

    The model at its side is told all that happens, and is asked each round; its cache may never be ahead.
    """

    name = "shadow"

    def __init__(self, model: CachingProposer, texts: Sequence[Sequence[int]], seed: int, vocab: int) -> None:
        super().__init__(texts, seed, vocab)
        self.model = model
        self.num_slots = model.num_slots
        self.proposals: list[Proposal] = []

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        super().admit(slot, prompt)
        self.model.admit(slot, prompt)

    def observe(self, committed: Committed) -> None:
        super().observe(committed)
        self.model.observe(committed)

    def release(self, slot: int) -> None:
        super().release(slot)
        self.model.release(slot)

    def follow(self, rows: CacheRows) -> None:
        self.model.follow(rows)

    def num_cached(self, slot: int) -> int:
        return self.model.num_cached(slot)

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        self.ask(batch)
        return super().propose(batch)

    def ask(self, batch: DraftBatch) -> CandidateTrees:
        """What the model proposes."""
        trees = self.model.propose(batch)
        trees.check()
        assert (trees.num_nodes <= batch.max_nodes).all()
        for row, slot in enumerate(batch.slots.tolist()):
            if batch.max_nodes[row] > 1:
                self.proposals.append(_proposal(trees, batch, row, self.texts[slot]))
        return trees


class Witness(Shadow):
    """Gives the target what the model proposes, and remembers it."""

    name = "witness"

    def __init__(self, model: CachingProposer) -> None:
        super().__init__(model, [], 0, 1)

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        return self.ask(batch)


def _proposal(trees: CandidateTrees, batch: DraftBatch, row: int, text: list[int]) -> Proposal:
    assert batch.sampling is not None
    count = int(trees.num_nodes[row])
    nodes = zip(trees.parents[row, 1:count].tolist(), trees.tokens[row, 1:count].tolist(), strict=True)
    law: tuple[bytes, ...] = ()
    if trees.is_sampled is not None and trees.is_sampled[row].any():
        assert trees.draft_logprobs is not None
        law = tuple(trees.draft_logprobs[row, node].tobytes() for node in range(count - 1))
    return Proposal(
        tuple(text),
        int(batch.max_nodes[row]),
        float(batch.sampling.temperature[row]),
        int(batch.sampling.seeds[row]),
        tuple(nodes),
        law,
    )


def propose_afresh(engine: Engine, asked: Proposal) -> Proposal:
    """What the engine's proposer, which is a Shadow, proposes first behind the same text.

    Scoring a prompt leaves its last token to be the root.
    """
    shadow = engine.proposer
    assert isinstance(shadow, Shadow) and not engine.has_work
    engine.scheduler.kv.forget()
    shadow.proposals.clear()
    sequence = engine.add(
        asked.text,
        SamplingParams(
            max_tokens=1024,
            speculative=asked.max_nodes - 1,
            temperature=asked.temperature,
            seed=asked.seed,
            prompt_logprobs=0,
        ),
    )
    while not shadow.proposals:
        engine.step()
    engine.abort(sequence)
    return shadow.proposals[0]
