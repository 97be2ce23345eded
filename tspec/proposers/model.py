"""Proposers that are models with a cache of their own: a draft model, an EAGLE head.

A round is one program: it takes in the tokens that were committed since the last one, then grows a tree level by level.
Keys and values of candidates stay behind the committed ones, are never counted, and the next round writes over them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tspec.core.proposer import CacheRows, Committed, DraftBatch
from tspec.core.sampling import DRAWN_CHAIN
from tspec.core.tree import MAX_NODES, NO_PARENT, CandidateTrees
from tspec.graph.plan import Bucket
from tspec.proposers.growth import PRIORS, best_trees, read_levels
from tspec.proposers.texts import Text
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.inputs import Executor, PassInputs

_CHAIN_PARENTS = np.arange(NO_PARENT, MAX_NODES - 1, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How a proposer's program grows its trees.

    depth       levels at most
    width       nodes of a level that go on, and candidates of each node; 1 is a chain
    draws       "top": the likeliest; "match", "ratio": drawn (models/draft.py)
    first_slot  slots of its cache that stay empty
    num_tokens  tokens that it knows, the lowest ids; it reads any other as token 0
    """

    depth: int
    width: int
    draws: str
    first_slot: int
    num_tokens: int

    @property
    def num_slots(self) -> int:
        """Slots behind the root that a round writes: the last level is never taken in."""
        return (self.depth - 1) * self.width


def round_kind(depth: int) -> str:
    """Name of the pass of a round with so many levels; 0 takes in tokens alone."""
    return f"round{depth}"


class ModelProposer:
    """Proposes from a model that runs in an executor of its own, in the KV blocks of the target's sequences."""

    def __init__(self, name: str, executor: Executor, shape: DraftShape) -> None:
        self.name = name
        self.num_slots = shape.num_slots
        self.priors = PRIORS
        self._executor = executor
        self._shape = shape
        self._texts: dict[int, Text] = {}
        self._cached: dict[int, int] = {}

    def warm_up(self) -> None:
        """Nothing: its executor is warm when it comes here."""

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start a sequence: `prompt` int32 [n] are its committed tokens so far. A slot in use starts over."""
        self._texts[slot] = Text(prompt)
        self._cached[slot] = self._shape.first_slot

    def release(self, slot: int) -> None:
        """Forget a sequence. Unknown slots are ignored."""
        self._texts.pop(slot, None)
        self._cached.pop(slot, None)

    def observe(self, committed: Committed) -> None:
        """Append what was committed; slots that are released meanwhile are ignored."""
        for row, (slot, count) in enumerate(
            zip(committed.slots.tolist(), committed.counts.tolist(), strict=True)
        ):
            if slot in self._texts:
                self._texts[slot].append(committed.tokens[row, :count])

    def num_cached(self, slot: int) -> int:
        """Leading tokens of a sequence that the cache holds."""
        return self._cached[slot]

    def follow(self, rows: CacheRows) -> None:
        """Take in what a pass over prompts has committed."""
        self._share(rows)
        self._take_in(rows, range(len(rows.slots)), rows.ends, most_left=0)

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """Return one tree a row; the root alone where there is no room for candidates."""
        caches = batch.caches
        assert caches is not None, "the loop gives a CachingProposer where its caches are"
        trees = root_trees(batch)
        ends = caches.ends + 1  # the root, too
        # A root in a slot that stays empty is not taken in: a head knows nothing of what comes before it.
        rows = np.flatnonzero((batch.max_nodes > 1) & (ends > self._shape.first_slot))
        if len(rows) == 0:
            return trees
        self._share(caches)
        self._take_in(caches, rows.tolist(), ends, most_left=MAX_NODES)
        depth = int(min(self._shape.depth, batch.max_nodes[rows].max() - 1))
        outputs = self._run_round(batch, rows, ends, depth)
        plant(
            trees,
            rows,
            best_trees(batch.roots[rows], read_levels(outputs, depth, len(rows)), batch.max_nodes[rows]),
        )
        if self._shape.draws == "ratio":
            return _with_laws(trees, batch, rows, [outputs[f"level{level}.law"] for level in range(depth)])
        return trees

    def _share(self, rows: CacheRows) -> None:
        """What is in known blocks has been taken in, by this sequence or by the one that it shares them with."""
        for slot, known in zip(rows.slots.tolist(), rows.known.tolist(), strict=True):
            self._cached[slot] = max(self._cached[slot], known)

    def _take_in(self, caches: CacheRows, rows: Sequence[int], ends: np.ndarray, *, most_left: int) -> None:
        """Run passes over committed tokens until at most `most_left` of a row are left."""
        while True:
            late = [row for row in rows if ends[row] - self._cached[int(caches.slots[row])] > most_left]
            if not late:
                return
            trees = self._chains(caches, late, ends)
            self._executor.run(round_kind(0), *self._pass(caches, late, trees, {}))
            self._mark_cached(caches, late, trees)

    def _run_round(
        self, batch: DraftBatch, rows: np.ndarray, ends: np.ndarray, depth: int
    ) -> Mapping[str, np.ndarray]:
        caches, sampling = batch.caches, batch.sampling
        assert caches is not None
        trees = self._chains(caches, rows.tolist(), ends)
        requests: dict[str, np.ndarray] = {"draft_prefix": ends[rows]}
        if sampling is not None:
            requests |= {"temperature": sampling.temperature[rows], "seed": sampling.seeds[rows]}
        bucket, inputs = self._pass(caches, rows.tolist(), trees, requests)
        level_nodes = np.zeros(bucket.rows, dtype=np.int32)  # all rows of the bucket: unused ones have none
        level_nodes[: len(rows)] = self._shape.width
        requests["level_nodes"] = level_nodes
        outputs = self._executor.run(round_kind(depth), bucket, inputs)
        self._mark_cached(caches, rows.tolist(), trees)
        return outputs

    def _chains(self, caches: CacheRows, rows: Sequence[int], ends: np.ndarray) -> CandidateTrees:
        """The next tokens that the cache lacks, up to 64 a row."""
        texts = []
        for row in rows:
            slot = int(caches.slots[row])
            start = self._cached[slot]
            texts.append(self._texts[slot].tokens(start, min(int(ends[row]), start + MAX_NODES)))
        width = max(map(len, texts))
        tokens = np.zeros((len(rows), width), dtype=np.int32)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = text
        tokens[tokens >= self._shape.num_tokens] = 0
        parents = np.broadcast_to(_CHAIN_PARENTS[:width], tokens.shape)
        return CandidateTrees(tokens, parents, np.array([len(text) for text in texts], dtype=np.int32))

    def _pass(
        self,
        caches: CacheRows,
        rows: Sequence[int],
        trees: CandidateTrees,
        requests: Mapping[str, np.ndarray],
    ) -> tuple[Bucket, PassInputs]:
        starts = np.array([self._cached[int(caches.slots[row])] for row in rows], dtype=np.int32)
        bucket = smallest_bucket(len(rows), trees.tokens.shape[1])
        return bucket, PassInputs(trees, starts, caches.block_table[list(rows)], requests)

    def _mark_cached(self, caches: CacheRows, rows: Sequence[int], trees: CandidateTrees) -> None:
        for row, count in zip(rows, trees.num_nodes.tolist(), strict=True):
            self._cached[int(caches.slots[row])] += count


def root_trees(batch: DraftBatch) -> CandidateTrees:
    """Trees of one node, with room for as many as are asked for."""
    shape = (len(batch.roots), int(batch.max_nodes.max()))
    tokens, parents = np.zeros(shape, dtype=np.int32), np.full(shape, NO_PARENT, dtype=np.int32)
    tokens[:, 0] = batch.roots
    evidence = np.zeros(shape, dtype=np.int32)
    return CandidateTrees(tokens, parents, np.ones(shape[0], dtype=np.int32), evidence=evidence)


def plant(trees: CandidateTrees, rows: np.ndarray, grown: CandidateTrees) -> None:
    """Put grown trees in the place of roots."""
    width = grown.tokens.shape[1]
    trees.tokens[rows, :width], trees.parents[rows, :width] = grown.tokens, grown.parents
    trees.num_nodes[rows] = grown.num_nodes
    assert trees.evidence is not None and grown.evidence is not None
    trees.evidence[rows, :width] = grown.evidence


def _with_laws(
    trees: CandidateTrees, batch: DraftBatch, rows: np.ndarray, laws: Sequence[np.ndarray]
) -> CandidateTrees:
    """Say which candidates were drawn, and from what. Those of greedy rows are certain."""
    assert batch.sampling is not None, "drawing needs temperatures"
    is_sampled = np.zeros(trees.tokens.shape, dtype=np.int32)
    logprobs = np.empty((*trees.tokens.shape, laws[0].shape[-1]), dtype=np.float32)
    for place, row in enumerate(rows.tolist()):
        if batch.sampling.temperature[row] > 0:
            for node in range(int(trees.num_nodes[row]) - 1):
                is_sampled[row, node] = DRAWN_CHAIN
                logprobs[row, node] = laws[node][place, 0]
    return replace(trees, is_sampled=is_sampled, draft_logprobs=logprobs)
