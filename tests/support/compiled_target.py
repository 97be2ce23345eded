"""A checkpoint as the engine compiles it, run pass by pass, with the logits of every node put out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tspec.build import BuildOptions, build_engine
from tspec.core.shapes import blocks_for
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES, CandidateTrees, chain
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.inputs import PassInputs

Tokens = Sequence[int]


class CompiledTarget:
    """Gives each row of a pass KV blocks of its own, in no order. `options` are those of BuildOptions."""

    def __init__(self, folder: Path, *, num_rows: int = 4, num_threads: int = 1, **options: Any) -> None:
        asked = BuildOptions(max_num_seqs=num_rows, num_threads=num_threads, **options)
        self._engine = build_engine(folder, SpeculativeConfig.of(None), asked)
        width = blocks_for(self._engine.max_model_len + MAX_NODES)
        blocks = np.random.default_rng(0).permutation(num_rows * width).astype(np.int32)
        self._tables = blocks.reshape(num_rows, width)

    def plain(self, text: Tokens) -> np.ndarray:
        """Logits [len(text), V] after each token, decoded one a pass."""
        return self.ingest(text, chunk=1)

    def ingest(self, text: Tokens, chunk: int, row: int = 0, start: int = 0) -> np.ndarray:
        """Logits [len(text) - start, V] after each token from `start` on, in chains of up to `chunk`.

        Leaves the row's KV; that of the tokens before `start` has to be there.
        """
        pieces = [
            self._run([row], [first], chain(np.array(text[first : first + chunk], np.int32)))[0]
            for first in range(start, len(text), chunk)
        ]
        return np.concatenate(pieces)

    def verify(self, prefixes: Sequence[Tokens], trees: CandidateTrees) -> list[np.ndarray]:
        """Logits [nodes, V] of each tree after its prefix, all trees in one pass."""
        for row, prefix in enumerate(prefixes):
            if prefix:
                self.ingest(prefix, MAX_NODES, row)
        return self._run(range(len(prefixes)), [len(prefix) for prefix in prefixes], trees)

    def close(self) -> None:
        self._engine.close()

    def _run(self, rows: Sequence[int], prefix_len: Sequence[int], trees: CandidateTrees) -> list[np.ndarray]:
        bucket = smallest_bucket(len(rows), int(trees.num_nodes.max()))
        inputs = PassInputs(trees, np.array(prefix_len, np.int32), self._tables[list(rows)])
        padded = self._engine.executor.run("logits", bucket, inputs)["logits"]
        dense = padded.reshape(-1, padded.shape[-1])[: trees.num_nodes.sum()].copy()
        return np.split(dense, np.cumsum(trees.num_nodes)[:-1])
