"""Candidate trees as flat arrays, one row a sequence, and the masks that the verify pass reads."""

from dataclasses import dataclass

import numpy as np

from tspec.core.errors import ShapeError
from tspec.core.sampling import DRAWN_CHAIN

MAX_NODES = 64
"""Nodes of the largest tree: a node's ancestors are one bit each of an int64."""

NO_PARENT = -1
"""Parent of the root, and of padding."""


@dataclass(frozen=True, slots=True)
class CandidateTrees:
    """The guesses of a batch for one verify pass.

    tokens     int32 [B, T]  node tokens; node 0 is the root, the newest committed token
    parents    int32 [B, T]  parents come before their children; NO_PARENT for node 0
    num_nodes  int32 [B]     nodes past it are padding

    A proposer that draws candidates at random gives two more; without them all are certain, and are matched:

    is_sampled      int32 [B, T]         DRAWN where the children of a node were drawn, in node order and without
                                         replacement, from `draft_logprobs` of that node; DRAWN_CHAIN (see
                                         core/sampling.py) where the row may be verified as a block
    draft_logprobs  float32 [B, T, Q]    log of those probabilities over the draft's vocabulary, -inf for none. They
                                         sum to one; to less where a draw was dropped for what it was: then they are
                                         those of the draws that are kept, and the node has no child

    What is known of each candidate besides, where somebody asks for it:

    evidence  int32 [B, T]  class of what speaks for it, a number of its proposer's own (see RankedProposer)
    sources   int32 [B, T]  which proposers of a union gave it, a bit each
    """

    tokens: np.ndarray
    parents: np.ndarray
    num_nodes: np.ndarray
    is_sampled: np.ndarray | None = None
    draft_logprobs: np.ndarray | None = None
    evidence: np.ndarray | None = None
    sources: np.ndarray | None = None

    def check(self) -> None:
        """Raise ShapeError unless each row is a tree in which no two children of a node share a token."""
        rows, width = self.tokens.shape
        if self.parents.shape != (rows, width) or self.num_nodes.shape != (rows,) or width > MAX_NODES:
            raise ShapeError(
                "candidate trees",
                got=f"tokens {self.tokens.shape}, parents {self.parents.shape}, rows {self.num_nodes.shape}",
                need=f"[B, T], [B, T] and [B] with T <= {MAX_NODES}",
                fix="Fix the proposer.",
            )
        self._check_draft()
        for row in range(rows):
            self._check_row(row)
            if self.is_sampled is not None and self.is_sampled[row, 0] == DRAWN_CHAIN:
                self._check_block(row, self.is_sampled[row])

    def _check_draft(self) -> None:
        shape = self.tokens.shape
        sampled, logprobs = self.is_sampled, self.draft_logprobs
        if sampled is None and logprobs is None:
            return
        if sampled is None or logprobs is None or sampled.shape != shape or logprobs.shape[:2] != shape:
            raise ShapeError(
                "drawn candidates",
                got=f"is_sampled {None if sampled is None else sampled.shape}, "
                f"draft_logprobs {None if logprobs is None else logprobs.shape}",
                need=f"both, {list(shape)} and {[*shape, 'Q']}",
                fix="Fix the proposer.",
            )

    def _check_row(self, row: int) -> None:
        count = int(self.num_nodes[row])
        if not 1 <= count <= self.tokens.shape[1]:
            raise _bad_row(row, f"{count} nodes", f"1 to {self.tokens.shape[1]}")
        if self.parents[row, 0] != NO_PARENT:
            raise _bad_row(row, f"parent {self.parents[row, 0]} of the root", str(NO_PARENT))
        seen = set()
        for node in range(1, count):
            parent = int(self.parents[row, node])
            if not 0 <= parent < node:
                raise _bad_row(row, f"parent {parent} of node {node}", "a parent before its child")
            edge = (parent, int(self.tokens[row, node]))
            if edge in seen:
                raise _bad_row(row, f"two children {edge[1]} of node {parent}", "distinct siblings")
            seen.add(edge)

    def _check_block(self, row: int, is_sampled: np.ndarray) -> None:
        last = int(self.num_nodes[row]) - 1
        for node in range(1, last + 1):
            if self.parents[row, node] != node - 1:
                raise _bad_row(
                    row, f"parent {self.parents[row, node]} of node {node} of a block", str(node - 1)
                )
            if node < last and is_sampled[node] != DRAWN_CHAIN:
                raise _bad_row(
                    row, f"is_sampled {is_sampled[node]} at node {node} of a block", str(DRAWN_CHAIN)
                )


def _bad_row(row: int, got: str, need: str) -> ShapeError:
    return ShapeError(f"candidate tree in row {row}", got=got, need=need, fix="Fix the proposer.")


def chain(tokens: np.ndarray) -> CandidateTrees:
    """One row whose nodes are a path: `tokens` int32 [T], root first."""
    width = len(tokens)
    parents = np.arange(-1, width - 1, dtype=np.int32)
    row = np.asarray(tokens, dtype=np.int32)
    return CandidateTrees(row[None], parents[None], np.array([width], dtype=np.int32))


def fill_ancestors(
    parents: np.ndarray, num_nodes: np.ndarray, ancestors: np.ndarray, depth: np.ndarray
) -> None:
    """Write each node's ancestor bitmask and depth in place; padding is left as it was.

    Shapes: parents int32 [B, T], num_nodes int32 [B]; out: ancestors int64 [B, T], depth int32 [B, T].
    Bit j of `ancestors[row, node]` says that node j is an ancestor of `node`, or `node` itself.
    """
    for row, count in enumerate(num_nodes.tolist()):
        masks, depths = [1], [0]
        for node, parent in enumerate(parents[row, 1:count].tolist(), start=1):
            masks.append(masks[parent] | 1 << node)
            depths.append(depths[parent] + 1)
        ancestors[row, :count] = np.array(masks, dtype=np.uint64).astype(np.int64)
        depth[row, :count] = depths
