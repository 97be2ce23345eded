"""RMSNorm over a row, and over each head of a row."""

import torch

from tspec.kernels.reference.wide import widen


def rms_norm(attrs: dict, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
    """out = weight * (x / sqrt(mean(x**2) + eps)) over the last dim."""
    x = widen(x)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + attrs["eps"])
    return (weight.to(x.dtype) * normed,)


def head_norm(attrs: dict, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
    """RMSNorm of each head of `head_dim` elements."""
    heads = x.unflatten(-1, (-1, attrs["head_dim"]))
    return (rms_norm(attrs, heads, weight)[0].flatten(-2),)
