"""Which file of a head's folder holds its tensors, and these tensors under their canonical names.

Of several files the first of `head_kind.FILES` counts. Reads headers and names, no weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from tspec.checkpoint.head_kind import FILES
from tspec.checkpoint.head_tensors import canonical_name
from tspec.checkpoint.header import read_header
from tspec.checkpoint.index import INDEX_FILE, SINGLE_FILE, check_folder
from tspec.checkpoint.json_object import shown
from tspec.checkpoint.torch_file import open_torch_file
from tspec.checkpoint.weights import Checkpoint, Described, open_checkpoint
from tspec.core.errors import CheckpointError


class TensorSource(Protocol):
    """Tensors by their names in a file."""

    @property
    def tensors(self) -> Mapping[str, Described]: ...  # noqa: D102
    def load(self, name: str) -> torch.Tensor: ...  # noqa: D102


def tensor_file(folder: Path) -> Path:
    """The file with the head's tensors, or their index.  Errors: CheckpointError for a folder without one."""
    check_folder(folder)
    for name in FILES:
        if (folder / name).exists():
            return folder / name
    others = sorted(each.name for each in folder.iterdir() if each.suffix in (".safetensors", ".bin", ".pt"))
    raise CheckpointError(
        f"weights of the head in {folder}",
        got=", ".join(others[:4]) or "no such file",
        need=f"one of {', '.join(FILES)}",
        fix="Fetch the weights, or rename their file to one of these.",
    )


def open_tensors(file: Path) -> TensorSource:
    """The tensors of the file that `tensor_file` found.  Errors: CheckpointError for a damaged or unsafe one."""
    if file.name in (SINGLE_FILE, INDEX_FILE):
        return open_checkpoint(file.parent)
    if file.suffix == ".safetensors":
        return Checkpoint(file.parent, read_header(file))
    return open_torch_file(file)


def by_canonical_name(where: str, tensors: Mapping[str, Described]) -> dict[str, Described]:
    """Tensors by canonical name.  Errors: CheckpointError where two of them have the same one."""
    named: dict[str, Described] = {}
    for entry in tensors.values():
        name = canonical_name(entry.name)
        if name in named:
            raise CheckpointError(
                f"tensors of {where}",
                got=f"{shown(named[name].name)} and {shown(entry.name)}, both {shown(name)}",
                need="one tensor of each kind",
                fix="Remove the one that is not the head's.",
            )
        named[name] = entry
    return named
