"""Candidate trees as plain dictionaries from paths to what is known of their last nodes, in node order."""

import numpy as np

from tspec.core.tree import CandidateTrees
from tspec.proposers.pool import NO_CLASS, Pool

Path = tuple[int, ...]
"""Tokens behind the root."""


def paths_of(tokens: np.ndarray, parents: np.ndarray, count: int) -> list[Path]:
    """The path of each node of one row, that of the root first."""
    paths: list[Path] = [()]
    for node in range(1, count):
        paths.append((*paths[parents[node]], int(tokens[node])))
    return paths


def rows_of(trees: CandidateTrees, values: np.ndarray | None) -> list[dict[Path, int]]:
    """Each row's candidates, with their evidence or their sources."""
    assert values is not None
    rows = []
    for row, count in enumerate(trees.num_nodes.tolist()):
        paths = paths_of(trees.tokens[row], trees.parents[row], count)
        rows.append({path: int(values[row, node]) for node, path in enumerate(paths) if node})
    return rows


def pool_rows(pool: Pool, num_rows: int) -> list[dict[Path, dict[int, int]]]:
    """Each row's candidates, with the class of each source that gave them."""
    rows = []
    for row in range(num_rows):
        paths = paths_of(pool.tokens[row], pool.parents[row], int(pool.counts[row]))
        given = [
            {
                source: number
                for source, number in enumerate(pool.classes[row, node].tolist())
                if number != NO_CLASS
            }
            for node in range(len(paths))
        ]
        rows.append({path: given[node] for node, path in enumerate(paths) if node})
    return rows
