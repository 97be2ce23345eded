"""All that the proposers of a union gave in one round, merged by paths, before it is decided what is verified."""

from typing import NamedTuple

import numpy as np

from tspec.core.tree import MAX_NODES, CandidateTrees

POOL_NODES = 2 * MAX_NODES
"""Nodes of a row at most; what proposers give beyond that is left out."""
NO_CLASS = -1


class Pool(NamedTuple):
    """Trees of B rows.

    tokens, parents  int32 [B, P]     as in candidate trees, the root first
    classes          int32 [B, P, S]  class of evidence of each source's candidate, NO_CLASS where it gave none
    chances          float64 [B, P]   estimate that a node is right where all before it are
    counts           int32 [B]        nodes
    is_chosen        bool [B, P]      what is to be verified
    gains            float64 [B]      tokens that the chosen candidates of a row may be expected to bring
    """

    tokens: np.ndarray
    parents: np.ndarray
    classes: np.ndarray
    chances: np.ndarray
    counts: np.ndarray
    is_chosen: np.ndarray
    gains: np.ndarray


class Ranked(NamedTuple):
    """Trees of one proposer: see CandidateTrees. All int32."""

    tokens: np.ndarray
    parents: np.ndarray
    num_nodes: np.ndarray
    evidence: np.ndarray


def make_pool(num_rows: int, num_sources: int) -> Pool:
    """Return room for the trees of so many rows."""
    shape = (num_rows, POOL_NODES)
    return Pool(
        np.zeros(shape, dtype=np.int32),
        np.zeros(shape, dtype=np.int32),
        np.zeros((*shape, num_sources), dtype=np.int32),
        np.zeros(shape),
        np.ones(num_rows, dtype=np.int32),
        np.zeros(shape, dtype=np.bool_),
        np.zeros(num_rows),
    )


def ranked(trees: CandidateTrees) -> Ranked:
    """Trees as native functions are compiled for."""
    assert trees.evidence is not None, "a ranked proposer says what speaks for its candidates"
    arrays = (trees.tokens, trees.parents, trees.num_nodes, trees.evidence)
    return Ranked(*(np.ascontiguousarray(each, dtype=np.int32) for each in arrays))
