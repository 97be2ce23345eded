"""From the levels that a draft's program puts out to candidate trees: the best nodes of all levels together.

Source    reranking: EAGLE-2, arXiv:2406.16858, section 4.2
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tspec.core.tree import NO_PARENT, CandidateTrees


@dataclass(frozen=True, slots=True)
class Level:
    """Candidates below the R nodes of the level before, N each; the first level's R is 1, the root.

    tokens     int32 [B, R, N]
    scores     float32 [B, R, N]  log-probabilities, added up from the root on; minus infinity where there is none
    next_from  int32 [B, W]       which of the R * N are the nodes of the next level
    """

    tokens: np.ndarray
    scores: np.ndarray
    next_from: np.ndarray


EVIDENCE_BOUNDS = np.log([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])
"""Candidates of a model fall into classes by what it gives them after the node before."""
PRIORS = np.array([0.03, 0.08, 0.15, 0.28, 0.42, 0.6, 0.8, 0.95], dtype=np.float32)
"""Chance of each class to be right: what the model itself gives."""


def read_levels(outputs: Mapping[str, np.ndarray], depth: int, rows: int) -> list[Level]:
    """The levels of a draft's program, of its first `rows` rows."""
    names = ("tokens", "scores", "next_from")
    return [Level(*(outputs[f"level{level}.{name}"][:rows] for name in names)) for level in range(depth)]


def best_trees(roots: np.ndarray, levels: Sequence[Level], max_nodes: np.ndarray) -> CandidateTrees:
    """Return trees of the best scores, at most max_nodes[row] nodes with the root; of equal ones the first.

    A candidate's score is at most its parent's, and it comes after it: so a tree has every node's parent. Evidence is
    how likely a model finds a candidate after its parent: a class of PRIORS.
    Shapes: roots, max_nodes int32 [B]
    """
    rows = len(roots)
    tokens = np.concatenate([level.tokens.reshape(rows, -1) for level in levels], axis=1)
    scores = np.concatenate([level.scores.reshape(rows, -1) for level in levels], axis=1)
    parents = _parents(levels, rows)
    width = int(min(max_nodes.max() - 1, tokens.shape[1]))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :width]
    counts = np.minimum(max_nodes - 1, (scores > -np.inf).sum(axis=1))
    is_taken = np.arange(width) < counts[:, None]
    order = np.sort(np.where(is_taken, order, tokens.shape[1]), axis=1)  # parents first again
    found = np.minimum(order, tokens.shape[1] - 1)
    out_tokens = np.zeros((rows, width + 1), dtype=np.int32)
    out_parents = np.full((rows, width + 1), NO_PARENT, dtype=np.int32)
    out_tokens[:, 0] = roots
    out_tokens[:, 1:] = np.where(is_taken, np.take_along_axis(tokens, found, axis=1), 0)
    node_of = np.zeros((rows, tokens.shape[1] + 2), dtype=np.int32)  # the last entry is the root's: index -1
    np.put_along_axis(node_of, order, np.arange(1, width + 1, dtype=np.int32)[None], axis=1)
    node_of[:, -1] = 0
    above = np.take_along_axis(parents, found, axis=1)
    out_parents[:, 1:] = np.where(
        is_taken, np.take_along_axis(node_of, above % node_of.shape[1], axis=1), NO_PARENT
    )
    evidence = np.zeros(out_tokens.shape, dtype=np.int32)
    of_parent = np.where(above < 0, 0.0, np.take_along_axis(scores, np.maximum(above, 0), axis=1))
    with np.errstate(invalid="ignore"):  # minus infinity twice, where there is no candidate
        alone = np.take_along_axis(scores, found, axis=1) - of_parent
    evidence[:, 1:] = np.where(is_taken, np.searchsorted(EVIDENCE_BOUNDS, alone), 0)
    return CandidateTrees(out_tokens, out_parents, (counts + 1).astype(np.int32), evidence=evidence)


def _parents(levels: Sequence[Level], rows: int) -> np.ndarray:
    """The candidate that each hangs on, by its number over all levels; -1 for the root."""
    found, start = [], 0
    above: np.ndarray | None = None
    for level in levels:
        num_parents, most = level.tokens.shape[1:]
        parent = np.full((rows, num_parents), -1) if above is None else above[:, :num_parents]
        found.append(np.repeat(parent, most, axis=1))
        above = start + level.next_from.astype(np.int64)
        start += num_parents * most
    return np.concatenate(found, axis=1)
