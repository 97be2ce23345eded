"""Acceptance by `match`: walk down the tree while the target's own token is among the children."""

from collections.abc import Callable

import torch

NO_NODE = -1
"""Fills `out_tokens` and `path` behind their last entry."""

Verdict = tuple[list[int], int]
"""The accepted nodes, and the bonus token."""


def accept_match(
    attrs: dict,
    node_tokens: torch.Tensor,
    tokens: torch.Tensor,
    ancestors: torch.Tensor,
    depth: torch.Tensor,
    num_nodes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (out_tokens, num_out, path): accepted tokens and the bonus, their number, accepted nodes."""
    verdicts = []
    for row, count in enumerate(num_nodes.tolist()):
        below = children(ancestors[row], depth[row], count)
        verdicts.append(walk(below, tokens[row].tolist(), node_tokens[row].tolist().__getitem__))
    return write_verdicts(verdicts, tokens)


def walk(below: list[list[int]], tokens: list[int], target: Callable[[int], int]) -> Verdict:
    """Walk one tree from its root; `target` gives the target's own token after a node."""
    node = 0
    path: list[int] = []
    while True:
        wanted = target(node)
        matching = [child for child in below[node] if tokens[child] == wanted]
        if not matching:
            return path, wanted
        node = matching[0]
        path.append(node)


def children(ancestors: torch.Tensor, depth: torch.Tensor, count: int) -> list[list[int]]:
    """The children of each of the first `count` nodes of one tree, in node order; the root's where there is none."""
    below: list[list[int]] = [[] for _ in range(max(count, 1))]
    for child in range(1, count):
        for node in range(child):
            if depth[child] == depth[node] + 1 and ancestors[child] >> node & 1:
                below[node].append(child)
    return below


def write_verdicts(
    verdicts: list[Verdict], tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (out_tokens, num_out, path) of verdicts on trees whose nodes hold `tokens`."""
    out_tokens, path = torch.full_like(tokens, NO_NODE), torch.full_like(tokens, NO_NODE)
    num_out = torch.zeros(len(tokens), dtype=torch.int32)
    for row, (nodes, bonus) in enumerate(verdicts):
        accepted = torch.tensor(nodes, dtype=torch.long)
        out_tokens[row, : len(nodes)] = tokens[row, accepted]
        out_tokens[row, len(nodes)] = bonus
        path[row, : len(nodes)] = accepted
        num_out[row] = len(nodes) + 1
    return out_tokens, num_out, path
