"""Look up each node's embedding."""

import torch

from tspec.kernels.reference.wide import widen


def embed(attrs: dict, tokens: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
    """out[row, node] = weight[tokens[row, node]], in float32 at least."""
    return (widen(weight[tokens.long()]),)
