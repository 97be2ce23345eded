"""Hypothesis strategies: random candidate trees."""

import numpy as np
from hypothesis import strategies as st

from tspec.core.tree import NO_PARENT, CandidateTrees


@st.composite
def candidate_trees(
    draw: st.DrawFn, max_rows: int = 3, max_nodes: int = 12, vocab: int = 5, min_rows: int = 1
) -> CandidateTrees:
    """Trees of every form, siblings with distinct tokens, padded to one width."""
    counts = draw(st.lists(st.integers(1, max_nodes), min_size=min_rows, max_size=max_rows))
    width = draw(st.integers(max(counts), max_nodes))
    tokens = np.zeros((len(counts), width), np.int32)
    parents = np.full((len(counts), width), NO_PARENT, np.int32)
    num_nodes = np.ones(len(counts), np.int32)
    for row, count in enumerate(counts):
        num_nodes[row] = _draw_row(draw, tokens[row], parents[row], count, vocab)
    return CandidateTrees(tokens, parents, num_nodes)


def _draw_row(draw: st.DrawFn, tokens: np.ndarray, parents: np.ndarray, count: int, vocab: int) -> int:
    """Fill one row; an edge that is there already is not added again."""
    tokens[0] = draw(st.integers(0, vocab - 1))
    edges: set[tuple[int, int]] = set()
    node = 1
    for _ in range(1, count):
        edge = draw(st.integers(0, node - 1)), draw(st.integers(0, vocab - 1))
        if edge not in edges:
            edges.add(edge)
            parents[node], tokens[node] = edge
            node += 1
    return node
