"""Acceptance by `match`: walk down the tree while the target's own token is among the children."""

import torch

NO_NODE = -1
"""Fills `out_tokens` and `path` behind their last entry."""


def accept_match(
    attrs: dict,
    node_tokens: torch.Tensor,
    tokens: torch.Tensor,
    ancestors: torch.Tensor,
    depth: torch.Tensor,
    num_nodes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (out_tokens, num_out, path): accepted tokens and the bonus, their number, accepted nodes."""
    out_tokens, path = torch.full_like(tokens, NO_NODE), torch.full_like(tokens, NO_NODE)
    num_out = torch.zeros_like(num_nodes)
    for row, count in enumerate(num_nodes.tolist()):
        node, accepted = 0, 0
        while True:
            wanted = out_tokens[row, accepted] = node_tokens[row, node]
            children = [
                child
                for child in range(node + 1, count)
                if depth[row, child] == depth[row, node] + 1
                and (ancestors[row, child] >> node) & 1
                and tokens[row, child] == wanted
            ]
            if not children:
                break
            node = path[row, accepted] = children[0]
            accepted += 1
        num_out[row] = accepted + 1
    return out_tokens, num_out, path
