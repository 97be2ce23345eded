"""Launches of cuda kernels recorded instead of run, and a mode in which nothing else may happen."""

from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

_ATEN = torch.ops.aten
VIEWS = {_ATEN.view.default, _ATEN.view.dtype, _ATEN.slice.Tensor, _ATEN.detach.default}
"""Views move no data and allocate nothing; a captured launch holds their addresses."""


class Refuse(TorchDispatchMode):
    """Raises on every op that is not a view."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func in VIEWS, f"{func} in a step"
        return func(*args, **(kwargs or {}))


class Launched(NamedTuple):
    """A kernel's name, its grid, the addresses of its tensors, its constants and options."""

    name: str
    grid: tuple[int, ...]
    addresses: tuple[int, ...]
    options: dict[str, Any]


def record_launches(monkeypatch: pytest.MonkeyPatch) -> list[Launched]:
    """The launches from now on, in order."""
    record: list[Launched] = []

    def run(self, *args, grid, warmup, **options):
        tensors = tuple(arg.data_ptr() for arg in args if isinstance(arg, torch.Tensor))
        record.append(Launched(self.fn.__name__, grid, tensors, options))

    monkeypatch.setattr(JITFunction, "run", run)
    return record
