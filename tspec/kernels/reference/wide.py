"""The dtype that references compute in: that of their input, but float32 at least."""

import torch


def widen(x: torch.Tensor) -> torch.Tensor:
    """Return x as float32, or as it is where it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
