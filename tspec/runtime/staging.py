"""Small arrays that cross between host and device in one copy: the static inputs of a bucket, and its outputs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from tspec.core.dtypes import DType
from tspec.runtime.torch_dtypes import TORCH_DTYPES

ALIGNMENT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Staging:
    """One packed buffer on each side. `arrays` are views of the host's, `tensors` of the device's, by name.

    bfloat16 has no array, since numpy has no such dtype: it is read as a tensor.
    """

    host: torch.Tensor
    device: torch.Tensor
    arrays: Mapping[str, np.ndarray]
    tensors: Mapping[str, torch.Tensor]

    def to_device(self) -> None:
        """Queue the copy of everything to the device."""
        self.device.copy_(self.host, non_blocking=True)

    def to_host(self) -> None:
        """Queue the copy of everything to the host; it is there once the stream has been waited for."""
        self.host.copy_(self.device, non_blocking=True)


def make_staging(shapes: Mapping[str, tuple[tuple[int, ...], DType]], device: torch.device) -> Staging:
    """Lay out the named arrays one behind the other, zeroed. The host's side is pinned where the device is another."""
    offsets, size = {}, 0
    for name, (shape, dtype) in shapes.items():
        offsets[name] = size
        size += -(-int(np.prod(shape)) * dtype.itemsize_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    host = torch.zeros(max(size, 1), dtype=torch.uint8, pin_memory=device.type == "cuda")
    on_device = torch.zeros(max(size, 1), dtype=torch.uint8, device=device)
    arrays, tensors = {}, {}
    for name, (shape, dtype) in shapes.items():
        if dtype is not DType.BFLOAT16:
            arrays[name] = _view(host, offsets[name], shape, dtype).numpy()
        tensors[name] = _view(on_device, offsets[name], shape, dtype)
    return Staging(host, on_device, arrays, tensors)


def _view(memory: torch.Tensor, offset: int, shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
    size = int(np.prod(shape)) * dtype.itemsize_bytes
    return memory[offset : offset + size].view(TORCH_DTYPES[dtype]).view(shape)
