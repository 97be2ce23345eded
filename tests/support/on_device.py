"""Operands that were made on the CPU, moved to the device that a test runs on."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch


def moved(value: Any, device: torch.device) -> Any:
    """The same dataclass, tuple or tensor, with every tensor in it on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(moved(each, device) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        changes = {each.name: moved(getattr(value, each.name), device) for each in fields(value)}
        return replace(value, **changes)
    return value
