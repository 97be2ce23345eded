"""Products with a weight [N, K], with a norm before or a residual add behind."""

import torch

from tspec.kernels.reference.activation import silu_mul
from tspec.kernels.reference.norm import rms_norm
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


def linear_add(
    attrs: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor
) -> tuple[torch.Tensor]:
    """out = x @ weight.T + bias + residual"""
    return (linear(attrs, x, weight, bias)[0] + residual,)


def norm_linear(
    attrs: dict, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor]:
    """out = rms_norm(x) @ weight.T + bias"""
    return linear(attrs, rms_norm(attrs, x, norm)[0], weight, bias)


def norm_linear_silu_mul(
    attrs: dict, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor]:
    """linear_silu_mul of rms_norm(x)"""
    return linear_silu_mul(attrs, rms_norm(attrs, x, norm)[0], weight, bias)
