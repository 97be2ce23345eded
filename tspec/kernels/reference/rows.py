"""Cutting rows and columns."""

import torch


def split(attrs: dict, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cut the last dim into pieces of `sizes`."""
    return x.split(list(attrs["sizes"]), dim=-1)


def last_row(attrs: dict, x: torch.Tensor, num_nodes: torch.Tensor) -> tuple[torch.Tensor]:
    """out[row, 0] = x[row, num_nodes[row] - 1]"""
    return (x[torch.arange(len(x)), num_nodes.long() - 1].unsqueeze(1),)
