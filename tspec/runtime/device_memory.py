"""Device memory that all plans of a model share: passes follow one another, and none reads what another left."""

import torch

from tspec.kernels.cuda.launch import Scratch


class SharedMemory:
    """An arena, and scratch of kernels: each as large as the largest plan so far needs it.

    A plan that needs more gets a new piece; those bound before keep theirs. So bind the largest first.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pieces: dict[str, list[torch.Tensor]] = {}

    def arena(self, size_bytes: int) -> torch.Tensor:
        """uint8 [size_bytes], with whatever a pass left there."""
        return self._take("arena", size_bytes, torch.uint8)

    def scratch(self, num_partials: int, num_counters: int) -> Scratch:
        """float32 partials, and int32 counters, which are 0 between passes."""
        return Scratch(
            self._take("partials", max(num_partials, 1), torch.float32),
            self._take("counters", max(num_counters, 1), torch.int32),
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.nbytes for pieces in self._pieces.values() for piece in pieces)

    def _take(self, name: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        pieces = self._pieces.setdefault(name, [])
        if not pieces or pieces[-1].numel() < size:
            pieces.append(torch.zeros(size, dtype=dtype, device=self._device))
        return pieces[-1][:size]
