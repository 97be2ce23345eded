"""The head: logits in float32, and choosing a token from them at once."""

import torch

from tspec.kernels.reference.linear import linear
from tspec.kernels.reference.norm import rms_norm
from tspec.kernels.reference.sampling import sample


def head_logits(
    attrs: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor]:
    """x @ weight.T + bias, in float32 at least"""
    (out,) = linear(attrs, x, weight, bias)
    return (out if out.dtype == torch.float64 else out.float(),)


def norm_head_logits(
    attrs: dict, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor]:
    """head_logits of rms_norm(x)"""
    return head_logits(attrs, rms_norm(attrs, x, norm)[0], weight, bias)


def head_sample(
    attrs: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *request: torch.Tensor
) -> tuple[torch.Tensor]:
    """sample of head_logits; `request` is what `sample` takes between the logits and what is kept of them"""
    temperature, seed, prefix_len, depth, num_nodes = request
    (logits,) = head_logits(attrs, x, weight, bias)
    return sample(attrs, logits, temperature, seed, prefix_len, depth, num_nodes, None, None)


def norm_head_sample(
    attrs: dict,
    x: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *request: torch.Tensor,
) -> tuple[torch.Tensor]:
    """head_sample of rms_norm(x)"""
    return head_sample(attrs, rms_norm(attrs, x, norm)[0], weight, bias, *request)
