"""Choosing tokens from logits."""

import torch

from tspec.kernels.reference.linear import linear
from tspec.kernels.reference.norm import rms_norm


def argmax(attrs: dict, logits: torch.Tensor) -> tuple[torch.Tensor]:
    """The lowest token whose logit is the greatest; NaN counts as minus infinity."""
    return (logits.masked_fill(logits.isnan(), -torch.inf).argmax(-1).int(),)


def head_argmax(
    attrs: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor]:
    """argmax of x @ weight.T + bias"""
    return argmax(attrs, linear(attrs, x, weight, bias)[0])


def norm_head_argmax(
    attrs: dict, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor]:
    """head_argmax of rms_norm(x)"""
    return head_argmax(attrs, rms_norm(attrs, x, norm)[0], weight, bias)
