"""Acceptance by `ratio`: rejection sampling of candidates that a proposer drew, for chains and for trees.

The decisions (`decide`) know nothing of where their chances come from: a `Chooser` does. `NoiseChooser` takes them
from core/noise.py, which the kernels reproduce; tests enumerate all of them with their probabilities instead.

Source   chains: arXiv:2211.17192, section 2.3; siblings without replacement: Sequoia, arXiv:2402.12374; block
         verification: arXiv:2403.10444. Each is proven again by enumeration: tests/property/test_exact_acceptance.py
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from tspec.core.noise import ACCEPT, RESIDUAL, gumbel, uniform
from tspec.core.sampling import DRAWN_CHAIN, NO_TOKEN
from tspec.kernels.reference.accept import Verdict, children, write_verdicts
from tspec.kernels.reference.sampling import clean, is_kept


@dataclass(frozen=True, slots=True)
class DrawnTree:
    """The candidates of one sequence, and the two distributions after each node.

    below       the children of each node, in the order in which they were drawn
    tokens      each node's token
    is_sampled  whether a node's children were drawn; they are certain otherwise
    is_block    whether this is a chain of drawn candidates, and would have been one whatever had been drawn
    p, q        node -> float64 [V]: the target's distribution, and the one that its first child was drawn from. Where
                draws are dropped for what they are, q is that of the draws that would be kept: it sums to less than 1,
                and the node has one child or, if its draw was dropped, none
    """

    below: list[list[int]]
    tokens: list[int]
    is_sampled: list[bool]
    is_block: bool
    p: Callable[[int], torch.Tensor]
    q: Callable[[int], torch.Tensor]


class Chooser(Protocol):
    """Where the chances of one sequence come from."""

    def target(self, node: int) -> int:
        """The target's own sample after `node`."""

    def accept(self, candidate: int, probability: float) -> bool:
        """True with this probability, never where it is 0. `candidate` is a node; each is asked for at most once."""

    def draw(self, node: int, weights: torch.Tensor) -> int:
        """A token after `node`, with chances in proportion to `weights`; NO_TOKEN where all are 0."""


def decide(tree: DrawnTree, chooser: Chooser) -> Verdict:
    """Accept candidates from the root down, and choose the bonus token."""
    if tree.is_block:
        return _decide_block(tree, chooser)
    node = 0
    path: list[int] = []
    while True:
        if tree.is_sampled[node]:
            accepted, bonus = _test_children(tree, node, chooser)
        else:
            bonus = chooser.target(node)
            accepted = next((child for child in tree.below[node] if tree.tokens[child] == bonus), None)
        if accepted is None:
            return path, bonus
        node = accepted
        path.append(node)


def _test_children(tree: DrawnTree, node: int, chooser: Chooser) -> tuple[int | None, int]:
    """Return (the accepted child, NO_TOKEN), or (None, the bonus token)."""
    p, q = tree.p(node), tree.q(node)
    rest, drawn_from = p, q
    for child in tree.below[node]:
        token = tree.tokens[child]
        if chooser.accept(child, _ratio(rest, drawn_from, token)):
            return child, NO_TOKEN
        rest = _normalised((rest - drawn_from).clamp(min=0))
        q = q.clone()
        q[token] = 0
        drawn_from = _normalised(q)
    if not tree.below[node]:
        rest = (p - q).clamp(min=0)
    return None, _draw(chooser, node, rest, p)


def _decide_block(tree: DrawnTree, chooser: Chooser) -> Verdict:
    """Accept as many candidates as the last accepted test allows, whatever the tests before it said."""
    reach, accepted, excess = 1.0, 0, _excess(tree, 0, 1.0)
    for node in range(1, len(tree.below)):
        reach = min(reach * _ratio(tree.p(node - 1), tree.q(node - 1), tree.tokens[node]), 1.0)
        here = _excess(tree, node, reach)
        over = float(here.sum())
        possible = over + 1 - reach
        if chooser.accept(node, over / possible if possible > 0 else 1.0):
            accepted, excess = node, here
    if tree.is_sampled[accepted]:
        bonus = _draw(chooser, accepted, excess, tree.p(accepted))
    else:
        bonus = chooser.target(accepted)
    return list(range(1, accepted + 1)), bonus


def _excess(tree: DrawnTree, node: int, reach: float) -> torch.Tensor:
    """What the draft leaves of p after `node`, which is reached with probability `reach`; all where it drew nothing."""
    p = reach * tree.p(node)
    return (p - tree.q(node)).clamp(min=0) if tree.is_sampled[node] else p


def _ratio(p: torch.Tensor, q: torch.Tensor, token: int) -> float:
    """p / q of a token: infinite where only q is 0, and 0 where p is."""
    if p[token] <= 0:
        return 0.0
    return float(p[token] / q[token]) if q[token] > 0 else torch.inf


def _normalised(weights: torch.Tensor) -> torch.Tensor:
    """Weights that sum to 1; zeros where all are."""
    total = weights.sum()
    return weights / total if total > 0 else weights


def _draw(chooser: Chooser, node: int, rest: torch.Tensor, p: torch.Tensor) -> int:
    """Draw from the residual; from p where rounding leaves nothing of it, for then the two laws are the same."""
    return chooser.draw(node, rest if rest.sum() > 0 else p)


@dataclass(frozen=True, slots=True)
class NoiseChooser:
    """Chances from core/noise.py.

    Tests take the number of the candidate's node in the stream ACCEPT, at the first position after the root: no other
    round has that root. A position of its own for each depth would not do, for block verification looks at more tests
    than it commits tokens, and the next round would meet numbers again of which it knows something already.
    """

    seed: int
    prefix_len: int
    depth: list[int]
    node_tokens: list[int]

    def target(self, node: int) -> int:
        """The target's own sample after `node`, which came with the logits."""
        return self.node_tokens[node]

    def accept(self, candidate: int, probability: float) -> bool:
        """Compare with a uniform number in (0, 1]."""
        return bool(uniform(self.seed, self.prefix_len + 1, ACCEPT, np.array(candidate)) <= probability)

    def draw(self, node: int, weights: torch.Tensor) -> int:
        """Gumbel-max: the largest log weight plus noise; the lowest token of several."""
        return int(self.noisy(node, weights).argmax()) if float(weights.max()) > 0 else NO_TOKEN

    def noisy(self, node: int, weights: torch.Tensor) -> torch.Tensor:
        """Log weights plus the noise of the place after `node`."""
        position = self.prefix_len + self.depth[node] + 1
        noise = gumbel(self.seed, position, RESIDUAL, np.arange(len(weights)))
        return weights.log() + torch.from_numpy(noise)


def accept_ratio(
    attrs: dict,
    node_tokens: torch.Tensor,
    tokens: torch.Tensor,
    ancestors: torch.Tensor,
    depth: torch.Tensor,
    num_nodes: torch.Tensor,
    prefix_len: torch.Tensor,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    *kept_and_draft: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (out_tokens, num_out, path): accepted tokens and the bonus, their number, accepted nodes.

    Drawn candidates are tested by ratio where temperature is above 0; all others are matched against `node_tokens`.
    """
    verdicts = []
    for row in range(len(tokens)):
        tree = drawn_tree(row, tokens, ancestors, depth, num_nodes, logits, temperature, *kept_and_draft)
        noise = int(seed[row]), int(prefix_len[row]), depth[row].tolist(), node_tokens[row].tolist()
        verdicts.append(decide(tree, NoiseChooser(*noise)))
    return write_verdicts(verdicts, tokens)


def drawn_tree(
    row: int,
    tokens: torch.Tensor,
    ancestors: torch.Tensor,
    depth: torch.Tensor,
    num_nodes: torch.Tensor,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    threshold: torch.Tensor,
    first_tie: torch.Tensor,
    log_sum: torch.Tensor,
    is_sampled: torch.Tensor,
    draft_logprobs: torch.Tensor,
    draft_index: torch.Tensor | None,
) -> DrawnTree:
    """What one row of the op's operands says."""

    def p(node: int) -> torch.Tensor:
        scores = clean(logits[row, node]) / temperature[row]
        kept = is_kept(scores.float(), float(threshold[row, node]), int(first_tie[row, node]))
        return torch.where(kept, (scores.double() - log_sum[row, node]).exp(), 0.0)

    def q(node: int) -> torch.Tensor:
        drawn = draft_logprobs[row, node].double().exp()
        return drawn if draft_index is None else torch.where(draft_index >= 0, drawn[draft_index.long()], 0.0)

    below = children(ancestors[row], depth[row], int(num_nodes[row]))
    drawn = [bool(temperature[row] > 0 and is_sampled[row, node]) for node in range(len(below))]
    is_block = drawn[0] and int(is_sampled[row, 0]) == DRAWN_CHAIN
    return DrawnTree(below, tokens[row].tolist(), drawn, is_block, p, q)
