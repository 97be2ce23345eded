"""Products with a weight [N, K]."""

import torch

from tspec.kernels.reference.activation import silu_mul
from tspec.kernels.reference.wide import widen


def linear(
    attrs: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor]:
    """out = x @ weight.T + bias"""
    x = widen(x)
    out = x @ weight.to(x.dtype).T
    return (out if bias is None else out + bias.to(x.dtype),)


def linear_silu_mul(
    attrs: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor]:
    """gate, up = halves of x @ weight.T + bias; out = silu(gate) * up"""
    gate, up = linear(attrs, x, weight, bias)[0].chunk(2, dim=-1)
    return silu_mul(attrs, gate, up)
