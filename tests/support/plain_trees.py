"""The tree of EAGLE-2 and EAGLE-3, by cumulative confidence, from any function that gives logits after a path.

Shares no code with tspec.  Source    EAGLE-2, arXiv:2406.16858, section 4, and `topK_genrate` of its authors' code
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from support.plain_heads import TargetStates, eagle_logits, medusa_logits
from support.tiny_heads import TinyEagle, TinyMedusa

Path = tuple[int, ...]


@dataclass(frozen=True)
class PlainTree:
    """Candidates behind a root, in an order in which parents come first.

    tokens   the root's own, then the candidates', in the target's ids
    parents  -1 for the root
    scores   sums of log-probabilities along the path; 0 for the root
    """

    tokens: list[int]
    parents: list[int]
    scores: list[float]

    def path(self, node: int) -> Path:
        """Tokens from below the root down to a node."""
        return () if node == 0 else (*self.path(self.parents[node]), self.tokens[node])


@dataclass(frozen=True)
class _Node:
    path: Path
    score: float


def confidence_tree(
    root: int,
    logits_after: Callable[[Path], torch.Tensor],
    *,
    top_k: int,
    levels: int,
    num_candidates: int,
    target_id: Callable[[int], int] = int,
) -> PlainTree:
    """Grow a tree level by level and keep its best nodes.

    logits_after    logits [rows] after a path of the target's ids, () for the root itself
    top_k           children of each node that goes on, and nodes of a level that go on
    levels          of candidates; one more than the authors' `depth`
    num_candidates  kept of all that were scored, one less than their `total_token`
    target_id       of an id of the head's own

    Every node that goes on is scored with its top_k likeliest children; the top_k best of these go on. All that were
    scored compete in the end. Where scores are equal, the earlier one wins: by level, by its parent's place, by rank.
    """
    scored: list[_Node] = []
    level = [_Node((), 0.0)]
    for _ in range(levels):
        children = [child for node in level for child in _children(node, logits_after, top_k, target_id)]
        scored += children
        level = _best(children, top_k)
    kept = sorted(_best(range(len(scored)), num_candidates, key=lambda place: scored[place].score))
    nodes = [_Node((), 0.0), *(scored[place] for place in kept)]
    number = {node.path: place for place, node in enumerate(nodes)}
    return PlainTree(
        [root, *(node.path[-1] for node in nodes[1:])],
        [-1, *(number[node.path[:-1]] for node in nodes[1:])],
        [node.score for node in nodes],
    )


def eagle_tree(
    head: TinyEagle,
    target: TargetStates,
    tokens: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    **sizes: int,
) -> PlainTree:
    """The tree of an EAGLE head behind the last of `tokens`; `sizes` as in `confidence_tree`."""
    return confidence_tree(
        tokens[-1],
        lambda path: eagle_logits(head, target, tokens, path, dtype),
        target_id=head.target_id,
        **sizes,
    )


def medusa_tree(heads: TinyMedusa, root: int, normed: torch.Tensor, **sizes: int) -> PlainTree:
    """The same tree of Medusa heads, each of which says the same behind every path of its length."""
    logits = medusa_logits(heads, normed)
    ids = heads.draft_ids
    return confidence_tree(
        root,
        lambda path: logits[len(path)],
        target_id=(lambda row: row if ids is None else ids[row]),
        **sizes,
    )


def _children(
    node: _Node, logits_after: Callable[[Path], torch.Tensor], top_k: int, target_id: Callable[[int], int]
) -> list[_Node]:
    logprobs = logits_after(node.path).log_softmax(dim=-1).tolist()
    best = _best(range(len(logprobs)), top_k, key=logprobs.__getitem__)
    return [_Node((*node.path, target_id(row)), node.score + logprobs[row]) for row in best]


def _best(items, count, key=lambda node: node.score):
    """The `count` items of the largest keys, largest first; of equal ones the earlier."""
    return sorted(items, key=key, reverse=True)[:count]  # sorted keeps the order of equals, also in reverse
