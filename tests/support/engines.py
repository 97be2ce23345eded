"""Engines with proposers made for tests: ones that know the answer, guess at random, or break the rules."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tspec.core.proposer import Committed, DraftBatch, Proposer
from tspec.core.sampling_params import SamplingParams
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import NO_PARENT, CandidateTrees
from tspec.proposers.none import NoProposer
from tspec.runtime.loop import Engine
from tspec.runtime.sequence import Sequence as RunningSequence

NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 5}


def build(folder: Path, speculative: dict[str, Any] | None = None, **options: Any) -> Engine:
    """An engine of one thread, as `LLM` builds it."""
    # Here, so that the proposers below can be had where what reads checkpoints is missing.
    from tspec.build import BuildOptions, build_engine

    asked = BuildOptions(**{"num_threads": 1, "kv_cache_mib": 64} | options)
    return build_engine(folder, SpeculativeConfig.of(speculative or {"method": "none"}), asked)


def with_proposer(
    engine: Engine,
    proposer: Proposer,
    *,
    max_candidates: int = 7,
    max_num_seqs: int = 8,
    node_budget: int = 64,
    acceptance: str = "auto",
    share_prefixes: bool = True,
    mixes_prompts: bool = True,
) -> Engine:
    """An engine of its own on the same weights and KV memory. Use one of them at a time.

    It writes over what the other one knows, which therefore forgets it.
    """
    engine.scheduler.kv.forget()
    return Engine(
        engine.config,
        engine.executor,
        proposer,
        max_model_len=engine.max_model_len,
        max_num_seqs=max_num_seqs,
        max_candidates=max_candidates,
        node_budget=node_budget,
        acceptance=acceptance,
        share_prefixes=share_prefixes,
        mixes_prompts=mixes_prompts,
    )


def with_room(
    engine: Engine, *, num_blocks: int | None = None, max_num_seqs: int = 8, node_budget: int = 512
) -> Engine:
    """An engine on all that another has, its proposer too, where many sequences may have whole trees.

    num_blocks   of KV memory that it may use
    """
    executor, whole = engine.executor, engine.executor.num_blocks
    executor.num_blocks = num_blocks or whole
    try:
        return with_proposer(
            engine,
            engine.proposer,
            max_candidates=engine._max_candidates,
            max_num_seqs=max_num_seqs,
            node_budget=node_budget,
            acceptance=engine._acceptance,
            mixes_prompts=engine._mixes_prompts,
        )
    finally:
        executor.num_blocks = whole


def run(engine: Engine, *prompts: Sequence[int], **params: Any) -> list[RunningSequence]:
    """Decode prompts together to their ends."""
    sequences = [engine.add(prompt, SamplingParams(**params)) for prompt in prompts]
    finish(engine)
    return sequences


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def come_and_go(engine: Engine, requests: Sequence[tuple[list[int], int]]) -> list[RunningSequence]:
    """Decode prompts with a limit of tokens each; one joins each step, with another beside it that is dropped later."""
    kept, dropped = [], []
    for prompt, max_tokens in requests:
        kept.append(engine.add(prompt, SamplingParams(max_tokens=max_tokens)))
        dropped.append(engine.add(prompt[::-1], SamplingParams(max_tokens=60)))
        engine.step()
        if len(dropped) > 2:
            engine.abort(dropped.pop(0))
    for sequence in dropped:
        engine.abort(sequence)
    finish(engine)
    return kept


def outputs(sequences: Sequence[RunningSequence]) -> list[list[int]]:
    return [sequence.output_ids for sequence in sequences]


def num_held(engine: Engine) -> dict[str, int]:
    """What requests hold; all zero when none is there."""
    scheduler = engine.scheduler
    scheduler.check()
    return {
        "blocks": scheduler.kv.num_blocks - scheduler.kv.num_free,
        "running": len(scheduler.running),
        "waiting": scheduler.num_waiting,
    }


class TestProposer(NoProposer):
    """Follows each slot's text; `grow` says which nodes hang below the root. Proposes nothing by itself."""

    __test__ = False
    name = "test"

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}
        self.rounds: list[tuple[list[int], list[int]]] = []

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        assert slot not in self.texts, slot
        self.texts[slot] = prompt.tolist()

    def observe(self, committed: Committed) -> None:
        for row, slot in enumerate(committed.slots.tolist()):
            self.texts[slot] += committed.tokens[row, : committed.counts[row]].tolist()

    def release(self, slot: int) -> None:
        del self.texts[slot]

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """The texts that were observed have to end in the roots of the batch."""
        slots = batch.slots.tolist()
        assert [self.texts[slot][-1] for slot in slots] == batch.roots.tolist()
        nodes = [
            [(NO_PARENT, root), *self.grow(self.texts[slot], most)][:most]
            for slot, root, most in zip(slots, batch.roots.tolist(), batch.max_nodes.tolist(), strict=True)
        ]
        self.rounds.append(([len(row) for row in nodes], batch.max_nodes.tolist()))
        width = max(map(len, nodes))
        padded = np.array([row + [(NO_PARENT, 0)] * (width - len(row)) for row in nodes], np.int32)
        counts = np.array([len(row) for row in nodes], np.int32)
        trees = CandidateTrees(padded[:, :, 1].copy(), padded[:, :, 0].copy(), counts)
        trees.check()
        return trees

    def grow(self, text: list[int], most: int) -> list[tuple[int, int]]:
        """(parent, token) of each node after the root, for a sequence with this text."""
        return []


class Oracle(TestProposer):
    """Proposes as a chain what the target will say, known from runs without speculation."""

    def __init__(self, texts: Sequence[Sequence[int]], num_candidates: int = 63) -> None:
        super().__init__()
        self.known = [list(text) for text in texts]
        self.num_candidates = num_candidates

    def grow(self, text: list[int], most: int) -> list[tuple[int, int]]:
        return list(enumerate(self.future(text)[: self.num_candidates]))

    def future(self, text: list[int]) -> list[int]:
        for known in self.known:
            if known[: len(text)] == text:
                return known[len(text) :]
        return []


class RandomTrees(Oracle):
    """Random trees, in which the target's own tokens hang at random places, too."""

    def __init__(self, texts: Sequence[Sequence[int]], seed: int, vocab: int) -> None:
        super().__init__(texts)
        self.random = np.random.default_rng(seed)
        self.vocab = vocab

    def grow(self, text: list[int], most: int) -> list[tuple[int, int]]:
        edges: list[tuple[int, int]] = []
        right, future = 0, self.future(text)
        for _ in range(int(self.random.integers(0, most))):
            edge = int(self.random.integers(0, len(edges) + 1)), int(self.random.integers(0, self.vocab))
            if future and self.random.random() < 0.4:
                edge = right, future.pop(0)
                right = edges.index(edge) + 1 if edge in edges else len(edges) + 1
            if edge not in edges:
                edges.append(edge)
        return edges
