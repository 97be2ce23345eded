"""The weights of plans in the layout of the CPU kernels: packed once, shared by all buckets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from tspec.core.errors import CheckpointError
from tspec.graph.ir import OF_TARGET
from tspec.graph.plan import Plan, WeightSpec
from tspec.kernels.cpu.pack import pack_gate_up, pack_panels
from tspec.runtime.memory import allocate
from tspec.runtime.torch_dtypes import TORCH_DTYPES

_PACKED = {"matrix": pack_panels, "gate_up": pack_gate_up}
_FLOAT32 = ("norm", "bias")


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """The memory of each weight, and the spec it was packed for (which tells its layout)."""

    memory: Mapping[str, np.ndarray]
    specs: Mapping[str, WeightSpec]

    def is_packed(self, name: str) -> bool:
        """Whether a matrix lies in panels; a tied embedding does, since the head reads it, too."""
        return self.specs[name].use in _PACKED

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(memory.nbytes for memory in self.memory.values())


def pack_weights(
    plan: Plan,
    load: Callable[[str], torch.Tensor],
    tables: Mapping[str, np.ndarray],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    target: PackedWeights | None = None,
) -> PackedWeights:
    """Return every weight that `plan` reads: a pass with the head, so that no other plan reads more.

    load     returns a checkpoint tensor by name
    tables   weights that no checkpoint holds ("derived"), by name
    target   the target's, for the plan of a proposer's model, which may read some of them where they lie
    Errors   CheckpointError for a matrix whose inner size is odd, which no kernel takes
    """
    memory, specs = {}, dict(plan.weights)
    for number, (name, spec) in enumerate(plan.weights.items(), start=1):
        if target is not None and name.startswith(OF_TARGET):
            own_name = name.removeprefix(OF_TARGET)
            memory[name], specs[name] = target.memory[own_name], replace(target.specs[own_name], name=name)
        else:
            memory[name] = _pack(spec, load, tables)
        on_progress(number, len(plan.weights))
    return PackedWeights(memory, specs)


def _pack(
    spec: WeightSpec, load: Callable[[str], torch.Tensor], tables: Mapping[str, np.ndarray]
) -> np.ndarray:
    if spec.use == "derived":
        return _keep(torch.from_numpy(tables[spec.name]))
    parts = [load(part) for part in spec.parts]
    tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
    if spec.use in _FLOAT32:
        return _keep(tensor.to(torch.float32))
    tensor = tensor.to(TORCH_DTYPES[spec.dtype])
    if spec.use in _PACKED:
        if tensor.shape[1] % 2:
            raise CheckpointError(
                f"inner size of {spec.name}",
                got=tensor.shape[1],
                need="an even number",
                fix="Pad the model's sizes to even numbers.",
            )
        tensor = _PACKED[spec.use](tensor)
    return _keep(tensor)


def _keep(tensor: torch.Tensor) -> np.ndarray:
    memory = allocate(tensor.numel() * tensor.element_size())
    torch.from_numpy(memory).copy_(tensor.contiguous().view(-1).view(torch.uint8))
    return memory
