"""Weights as the CPU kernels stream them. Runs once a weight, with torch, when a model is loaded."""

import torch

from tspec.core.dtypes import DType
from tspec.kernels.cpu.linear import PANEL
from tspec.kernels.cpu.simd import BF16, F16, F32

STORAGE = {DType.FLOAT32: F32, DType.BFLOAT16: BF16, DType.FLOAT16: F16}
"""The code that kernels branch on."""


def pack_panels(weight: torch.Tensor) -> torch.Tensor:
    """Return [N, K] as panels of PANEL outputs, zero rows added to fill the last one.

    float32 and float16: [panels, K, PANEL]; bfloat16: [panels, K / 2, PANEL, 2]. K has to be even.
    """
    outputs, k = weight.shape
    panels = -(-outputs // PANEL)
    if panels * PANEL != outputs:
        weight = torch.cat([weight, weight.new_zeros(panels * PANEL - outputs, k)])
    if weight.dtype == torch.bfloat16:
        return weight.view(panels, PANEL, k // 2, 2).permute(0, 2, 1, 3).contiguous()
    return weight.view(panels, PANEL, k).permute(0, 2, 1).contiguous()


def pack_gate_up(weight: torch.Tensor) -> torch.Tensor:
    """Return [2 N, K], gate over up, as pairs of panels: gate, up, gate, up, …"""
    gate, up = (pack_panels(half) for half in weight.chunk(2))
    return torch.stack([gate, up], dim=1).contiguous()
