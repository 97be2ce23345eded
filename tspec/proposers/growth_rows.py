"""The best nodes of all levels of a draft, as native functions. Owns no memory."""

import numpy as np

from tspec.core.tree import NO_PARENT
from tspec.kernels.jit import native


@native()
def plant_best(trees, max_nodes, tokens, scores, parents, bounds):
    """Write the candidates of the best scores behind each row's root, parents first; of equal ones the first.

    trees      (tokens, parents, evidence), int32 [B, N] each, and num_nodes int32 [B]
    max_nodes  int32 [B], root included
    tokens     int32 [B, C], scores float [B, C], parents int32 [B, C]: all candidates; see number_parents
    bounds     float64, of the classes of evidence: what a candidate has beside its parent
    """
    out_tokens, out_parents, evidence, num_nodes = trees
    num_candidates = tokens.shape[1]
    node_of = np.empty(num_candidates, dtype=np.int32)
    for row in range(len(num_nodes)):
        is_there = scores[row] > -np.inf
        order = np.argsort(np.where(is_there, -scores[row], np.inf), kind="mergesort")
        count = min(max_nodes[row] - 1, is_there.sum())
        node_of[:] = NO_PARENT
        for place in range(count):
            node_of[order[place]] = 0
        node = 0
        for candidate in range(num_candidates):
            if node_of[candidate] == NO_PARENT:
                continue
            node += 1
            node_of[candidate] = node
            above = parents[row, candidate]
            out_tokens[row, node] = tokens[row, candidate]
            out_parents[row, node] = 0 if above == NO_PARENT else node_of[above]
            alone = scores[row, candidate] - (scores[row, above] if above != NO_PARENT else 0)
            evidence[row, node] = np.searchsorted(bounds, alone)
        num_nodes[row] = count + 1


@native()
def number_parents(parents, next_from, shapes):
    """Write which candidate each hangs on, by its number over all levels: int32 [B, C]; NO_PARENT for the root.

    next_from  int [B, W]         of all levels, one after the other: which candidates of a level go on
    shapes     int64 [levels, 3]  nodes that a level hangs on, candidates of each, how many of its candidates go on
    """
    for row in range(len(parents)):
        at, above_at, above_start = 0, -1, 0
        for level in range(len(shapes)):
            num_above, most, _ = shapes[level]
            start = at
            for place in range(num_above):
                above = NO_PARENT if level == 0 else above_start + next_from[row, above_at + place]
                parents[row, at : at + most] = above
                at += most
            above_at = 0 if level == 0 else above_at + shapes[level - 1, 2]
            above_start = start
