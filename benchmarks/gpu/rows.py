"""Whether a row's logits are the same bits in every bucket: chains, batches, trees, each against plain decoding."""

from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.gpu.models import RandomModel, random_chains, random_tree, read_logits
from tspec.core.tree import MAX_NODES, CandidateTrees, chain
from tspec.graph.plan import Bucket
from tspec.runtime.buckets import smallest_bucket

LENGTHS = (1, 2, 4, 8, 16, MAX_NODES)
BATCH = 4
PREFIXES = (70, 3, 259, 130)
"""Committed tokens of each row: in the first chunk of attention, past it, and across borders of blocks."""


class RowProbe:
    """Logits of nodes by plain decoding and by wider passes over the same text, after random KV memory."""

    def __init__(self, model: RandomModel, num_tokens: int = MAX_NODES) -> None:
        self.model = model
        self.tokens = random_chains(model.config, BATCH, num_tokens, seed=1).tokens
        self.lengths = [length for length in LENGTHS if length <= num_tokens]
        self.plain = [self._decode(row, self.tokens[row]) for row in range(BATCH)]

    def chains(self) -> dict[str, str]:
        """By nodes of a chain: how many of its nodes have the bits of plain decoding."""
        verdicts = {}
        for length in self.lengths:
            found = self._logits(chain(self.tokens[0, :length]), PREFIXES[:1])
            verdicts[str(length)] = same_rows(found[0], self.plain[0][:length])
        return verdicts

    def batches(self) -> dict[str, str]:
        """By nodes of each chain: how many nodes of a batch of four have the bits of plain decoding alone."""
        verdicts = {}
        for length in self.lengths:
            chains = random_chains(self.model.config, BATCH, length)
            trees = CandidateTrees(self.tokens[:, :length].copy(), chains.parents, chains.num_nodes)
            found = self._logits(trees, PREFIXES)
            expected = torch.stack([plain[:length] for plain in self.plain])
            verdicts[str(length)] = same_rows(found, expected)
        return verdicts

    def trees(self, num_trees: int = 2) -> dict[str, str]:
        """By tree: how many nodes of a random tree have the bits of plain decoding of their own paths."""
        verdicts = {}
        for seed in range(num_trees):
            tree = random_tree(self.model.config, min(16, self.lengths[-1]), seed)
            found = self._logits(tree, PREFIXES[:1])[0]
            paths = [_path(tree.parents[0], node) for node in range(tree.tokens.shape[1])]
            expected = torch.stack([self._decode(0, tree.tokens[0, path])[-1] for path in paths])
            verdicts[f"tree {seed}"] = same_rows(found, expected)
        return verdicts

    def _decode(self, row: int, tokens: np.ndarray) -> torch.Tensor:
        """Logits [len(tokens), V] of a row, one token a pass."""
        return torch.cat(
            [
                self._logits(chain(tokens[token : token + 1]), [PREFIXES[row] + token], row)[0]
                for token in range(len(tokens))
            ]
        )

    def _logits(self, trees: CandidateTrees, prefixes: Sequence[int], first_row: int = 0) -> torch.Tensor:
        rows, nodes = trees.tokens.shape
        bucket: Bucket = smallest_bucket(rows, nodes)
        self.model.executor.run("logits", bucket, self.model.inputs(trees, list(prefixes), first_row))
        return read_logits(self.model.executor.bind("logits", bucket))[:rows, :nodes]


def same_rows(found: torch.Tensor, expected: torch.Tensor) -> str:
    """How many rows are equal as bits, as "3 of 4"."""
    bits = torch.int32 if found.dtype is torch.float32 else torch.int16
    same = (found.contiguous().view(bits) == expected.contiguous().view(bits)).all(dim=-1)
    return f"{int(same.sum())} of {same.numel()}"


def holds(verdicts: dict[str, str]) -> bool:
    """Whether every row of every pass was equal."""
    return all(verdict.split(" of ")[0] == verdict.split(" of ")[1] for verdict in verdicts.values())


def measure(model: RandomModel, num_tokens: int = MAX_NODES) -> dict[str, object]:
    """All three verdicts of a model, each with its yes or no."""
    probe = RowProbe(model, num_tokens)
    figures: dict[str, object] = {}
    for name, verdicts in (
        ("chains", probe.chains()),
        ("batches", probe.batches()),
        ("trees", probe.trees()),
    ):
        figures[name] = {"same_bits": holds(verdicts), "rows": verdicts}
    return figures


def _path(parents: np.ndarray, node: int) -> list[int]:
    """The nodes from the root to `node`."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    return path[::-1]
