"""The best static tree for a number of nodes, by how often the k-th likeliest candidate of a depth is right.

Source    Sequoia, arXiv:2402.12374, section 3.1: expected tokens of a tree are the sum over its nodes of the product of
          the chances along each node's path (there of the sibling's rank alone, here of rank and depth), and the best
          tree of each size follows from the best subtrees by dynamic programming
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tspec.core.tree import NO_PARENT


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A tree by its shape: node n hangs on parents[n], and is candidate number ranks[n] of it; node 0 is the root.

    expected_tokens   the root's bonus token included
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    expected_tokens: float

    @property
    def num_candidates(self) -> int:
        """Nodes without the root."""
        return len(self.parents) - 1

    @property
    def depth(self) -> int:
        """Candidates on the longest path."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return max(depths)

    @property
    def width(self) -> int:
        """The most candidates of a node, counted up to the last rank that is used."""
        return max((rank + 1 for rank in self.ranks[1:]), default=1)


def best_trees(chances: np.ndarray, most_nodes: int) -> list[StaticTree]:
    """Return the tree of most expected tokens of at most 1, 2, … `most_nodes` nodes, the root counted.

    chances  float64 [depths, ranks]: how often candidate k at depth d + 1 is right, where all before it are. Of a
             node's candidates at most one is right, so a row's sum is at most 1
    """
    tables = _tables(chances, most_nodes)
    trees = []
    for size in range(1, most_nodes + 1):
        parents, ranks = [NO_PARENT], [0]
        _grow(tables, chances, 0, size, 0, parents, ranks)
        trees.append(StaticTree(tuple(parents), tuple(ranks), float(tables[0].values[size])))
    return trees


def expected_tokens(parents: Sequence[int], ranks: Sequence[int], chances: np.ndarray) -> float:
    """What a tree is expected to give: over all nodes, the chance that all candidates up to it are right."""
    depths, found = [0], [1.0]
    for parent, rank in zip(parents[1:], ranks[1:], strict=True):
        depths.append(depths[parent] + 1)
        found.append(found[parent] * float(chances[depths[-1] - 1, rank]))
    return sum(found)


@dataclass(frozen=True, slots=True)
class _Table:
    """Best subtrees below and with a node of one depth.

    values   float64 [N + 1]  of at most so many nodes
    shares   int64 [ranks, N + 1]  nodes for candidate k, of so many that are left for candidates k and after
    """

    values: np.ndarray
    shares: np.ndarray


def _tables(chances: np.ndarray, most_nodes: int) -> list[_Table]:
    """The tables of depths 0, 1, …; of the deepest, whose nodes have no candidates, the last."""
    num_depths, num_ranks = chances.shape
    alone = np.ones(most_nodes + 1)
    alone[0] = 0
    found = [_Table(alone, np.zeros((num_ranks, most_nodes + 1), dtype=np.int64))]
    for depth in range(num_depths - 1, -1, -1):
        below = found[0].values
        rest, shares = np.zeros(most_nodes + 1), np.zeros((num_ranks, most_nodes + 1), dtype=np.int64)
        for rank in range(num_ranks - 1, -1, -1):
            worth = chances[depth, rank] * below
            # All ways to share so many nodes between this candidate and those after it.
            ways = [worth[: left + 1] + rest[left::-1] for left in range(most_nodes + 1)]
            shares[rank] = [int(np.argmax(each)) for each in ways]
            rest = np.array([each.max() for each in ways])
        values = np.concatenate([[0.0], 1 + rest[:-1]])
        found.insert(0, _Table(values, shares))
    return found


def _grow(
    tables: list[_Table],
    chances: np.ndarray,
    depth: int,
    size: int,
    node: int,
    parents: list[int],
    ranks: list[int],
) -> None:
    """Hang the best candidates on `node`, which has `size` nodes for itself and all below."""
    left = size - 1
    for rank in range(chances.shape[1] if depth < len(chances) else 0):
        share = int(tables[depth].shares[rank, left])
        left -= share
        if share > 0:
            parents.append(node)
            ranks.append(rank)
            _grow(tables, chances, depth + 1, share, len(parents) - 1, parents, ranks)
