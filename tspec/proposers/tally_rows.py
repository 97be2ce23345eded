"""What verify passes made of the candidates of each source, as native functions. Owns no memory."""

from typing import NamedTuple

import numpy as np

from tspec.kernels.jit import native


class Sourced(NamedTuple):
    """Candidate trees with the sources of their nodes. All int32."""

    tokens: np.ndarray
    parents: np.ndarray
    num_nodes: np.ndarray
    sources: np.ndarray


@native()
def tally_rows(tallies, saved, trees, rows, tokens, counts):
    """Add up, for each of P proposers, what became of its candidates.

    tallies  int64 [P, 3]   trees with a candidate of it, its candidates, those of them that are in the text now
    saved    float64 [P]    these last ones once more, those that several gave in equal parts
    rows     int32 [B]      the tree of each text, -1 for none; tokens int32 [B, D], counts int32 [B]: what came
    """
    for place in range(len(rows)):
        row = rows[place]
        if row < 0:
            continue
        seen = 0
        for node in range(1, trees.num_nodes[row]):
            seen |= trees.sources[row, node]
            for number in range(len(saved)):
                tallies[number, 1] += trees.sources[row, node] >> number & 1
        for number in range(len(saved)):
            tallies[number, 0] += seen >> number & 1
        node = 0
        for depth in range(counts[place]):
            node = _next_node(trees, row, node, tokens[place, depth])
            if node < 0:
                break
            _add_accepted(tallies, saved, trees.sources[row, node])


@native()
def _next_node(trees, row, node, token):
    for child in range(node + 1, trees.num_nodes[row]):
        if trees.parents[row, child] == node and trees.tokens[row, child] == token:
            return child
    return -1


@native()
def _add_accepted(tallies, saved, sources):
    num_sources = 0
    for number in range(len(saved)):
        num_sources += sources >> number & 1
    for number in range(len(saved)):
        if sources >> number & 1:
            tallies[number, 2] += 1
            saved[number] += 1.0 / num_sources
