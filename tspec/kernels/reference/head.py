"""Choosing tokens from logits."""

import torch

from tspec.kernels.reference.linear import linear


def argmax(attrs: dict, logits: torch.Tensor) -> tuple[torch.Tensor]:
    """The lowest token whose logit is the greatest; NaN counts as minus infinity."""
    return (logits.masked_fill(logits.isnan(), -torch.inf).argmax(-1).int(),)


def head_argmax(
    attrs: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor]:
    """argmax of x @ weight.T + bias"""
    return argmax(attrs, linear(attrs, x, weight, bias)[0])
