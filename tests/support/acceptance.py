"""The exact law of what acceptance puts out: every proposal, every verdict, and the target's own tokens behind it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch
from support.enumeration import Branches, EnumeratedChooser, every_outcome

from tspec.core.sampling import DRAWN, DRAWN_CHAIN
from tspec.core.tree import CandidateTrees, fill_ancestors
from tspec.kernels.reference.accept import Verdict, walk
from tspec.kernels.reference.accept_ratio import Chooser, DrawnTree, decide, drawn_tree

Prefix = tuple[int, ...]
LawAfter = Callable[[Prefix], np.ndarray]


@dataclass(frozen=True)
class Laws:
    """What the target and the draft say after each prefix.

    p            prefix -> float64 [V]
    q            prefix -> float64 [Q], over the draft's vocabulary
    draft_index  int [V]: where the target's tokens stand in the draft's vocabulary, -1 for nowhere; None: Q is V
    """

    vocab: int
    p: LawAfter
    q: LawAfter
    draft_index: np.ndarray | None = None

    def target_token(self, drawn: int) -> int:
        """The target's number of a token of the draft."""
        return drawn if self.draft_index is None else int(np.flatnonzero(self.draft_index == drawn)[0])


@dataclass
class Proposal:
    """A candidate tree as it grows.

    laws       what the children of each node are drawn from, None where they are certain
    is_block   whether the proposer draws at most one child a node, whatever comes out, and none is certain
    """

    is_block: bool = False
    tokens: list[int] = field(default_factory=lambda: [0])
    parents: list[int] = field(default_factory=lambda: [-1])
    laws: list[np.ndarray | None] = field(default_factory=lambda: [None])

    def add(self, parent: int, token: int) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.laws.append(None)
        return len(self.tokens) - 1

    def prefix(self, node: int) -> Prefix:
        return () if node == 0 else (*self.prefix(self.parents[node]), self.tokens[node])


Propose = Callable[[Branches, Laws], Proposal]
Decide = Callable[[DrawnTree, Chooser], Verdict]


def operands(laws: Laws, proposal: Proposal) -> list[torch.Tensor | None]:
    """What the op `accept_ratio` gets of one sequence, from `tokens` on without prefix_len and seed; in float64."""
    count = len(proposal.tokens)
    tokens, parents = np.array([proposal.tokens], np.int32), np.array([proposal.parents], np.int32)
    trees = CandidateTrees(tokens, parents, np.array([count], np.int32))
    trees.check()
    ancestors, depth = np.zeros((1, count), np.int64), np.zeros((1, count), np.int32)
    fill_ancestors(parents, trees.num_nodes, ancestors, depth)
    nothing = np.zeros_like(laws.q(()))
    with np.errstate(divide="ignore"):
        logits = np.log([[laws.p(proposal.prefix(node)) for node in range(count)]])
        draft = np.log([[nothing if law is None else law for law in proposal.laws]])
    kept = np.full((1, count), -np.inf), np.zeros((1, count), np.int64), np.zeros((1, count))
    flag = DRAWN_CHAIN if proposal.is_block else DRAWN
    is_sampled = np.array([[flag * (law is not None) for law in proposal.laws]], np.int32)
    arrays = (tokens, ancestors, depth, trees.num_nodes, logits, np.ones(1), *kept, is_sampled, draft)
    index = None if laws.draft_index is None else torch.from_numpy(laws.draft_index)
    return [*map(torch.from_numpy, arrays), index]


def output_law(laws: Laws, propose: Propose, length: int, decide_by: Decide = decide) -> np.ndarray:
    """The joint law of the first `length` tokens of one round and plain decoding behind it, [V] * length."""
    law = np.zeros((laws.vocab,) * length)
    for chance, proposal in every_outcome(lambda branches: propose(branches, laws)):
        read = drawn_tree(0, *operands(laws, proposal))
        tree = replace(read, p=cache(read.p), q=cache(read.q))
        for part, tokens in every_outcome(lambda branches, tree=tree: _emitted(branches, tree, decide_by)):
            tokens = tokens[:length]
            law[tokens] += chance * part * plain_law(laws, length - len(tokens), tokens)
    return law


def _emitted(branches: Branches, tree: DrawnTree, decide_by: Decide) -> Prefix:
    path, bonus = decide_by(tree, EnumeratedChooser(branches, tree))
    return (*(tree.tokens[node] for node in path), bonus)


def plain_law(laws: Laws, length: int, prefix: Prefix = ()) -> np.ndarray:
    """The joint law of `length` tokens that the target itself says after `prefix`."""
    if length == 0:
        return np.ones(())
    p = laws.p(prefix)
    return np.stack([p[token] * plain_law(laws, length - 1, (*prefix, token)) for token in range(laws.vocab)])


def match(tree: DrawnTree, chooser: Chooser) -> Verdict:
    """Acceptance by matching, whatever the candidates were drawn from."""
    return walk(tree.below, tree.tokens, chooser.target)
