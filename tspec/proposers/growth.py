"""From the levels that a draft's program puts out to candidate trees: the best nodes of all levels together.

Source    reranking: EAGLE-2, arXiv:2406.16858, section 4.2
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tspec.core.tree import NO_PARENT, CandidateTrees
from tspec.proposers.growth_rows import number_parents, plant_best


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
    tokens = _joined([level.tokens for level in levels])
    scores = _joined([level.scores for level in levels])
    next_from = _joined([level.next_from for level in levels])
    shapes = np.array([(*level.tokens.shape[1:], level.next_from.shape[1]) for level in levels])
    parents = np.empty(tokens.shape, dtype=np.int32)
    number_parents(parents, next_from, shapes)
    width = 1 + int(min(max_nodes.max() - 1, tokens.shape[1]))
    out_tokens, evidence = np.zeros((2, rows, width), dtype=np.int32)
    out_parents, num_nodes = np.full((rows, width), NO_PARENT, dtype=np.int32), np.empty(rows, dtype=np.int32)
    out_tokens[:, 0] = roots
    trees = (out_tokens, out_parents, evidence, num_nodes)
    plant_best(trees, max_nodes, tokens, scores, parents, EVIDENCE_BOUNDS)
    return CandidateTrees(out_tokens, out_parents, num_nodes, evidence=evidence)


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """What levels have of each row, one after the other."""
    return np.concatenate([each.reshape(len(each), -1) for each in arrays], axis=1)
