"""Tensors of a file that `torch.save` wrote (`pytorch_model.bin`, `.pt`), read as data and never as code.

`torch.load` runs with `weights_only=True`, which builds tensors and plain containers and refuses everything else that
a pickle can ask for, and with `mmap=True`: names and shapes are known before any weight is read. Executes no pickle.
"""

import pickle
import re
import warnings
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tspec.checkpoint.json_object import shown, unreadable
from tspec.core.errors import CheckpointError

_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_CONVERT = "Fetch the file again, or convert it to safetensors where you trust it."


@dataclass(frozen=True, slots=True)
class TorchEntry:
    """One tensor of the file; `dtype` in the safetensors format's words."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class TorchFile:
    """The tensors of one file. Open it with `open_torch_file`."""

    file: Path
    tensors: dict[str, TorchEntry]
    _values: dict[str, torch.Tensor] = field(repr=False, compare=False)

    def load(self, name: str) -> torch.Tensor:
        """One tensor in its own shape and dtype, of the names in `tensors`; it must not be written to.

        Cost   no copy, unless the file stores it in another order than that of its elements
        """
        return self._values[name].contiguous()


def open_torch_file(file: Path) -> TorchFile:
    """The tensors in a file.

    Errors    CheckpointError naming the file, for one that is cut or damaged, that holds anything besides a dictionary
              of dense tensors, or that is older than torch 1.6 (whose format cannot be mapped); nothing in it is run
    Cost      reads the pickle of names and shapes, no weights
    """
    try:
        stored_sizes = _check_archive(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged pickles, before they fail
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except CheckpointError:
        raise
    except OSError as error:
        raise unreadable(file, error) from error
    except Exception as error:  # a damaged or hostile pickle makes the reader raise whatever it meets first
        raise _bad(file, _reason(error), "tensors that torch.save wrote, and nothing else") from error
    if not isinstance(loaded, dict):
        raise _bad(file, type(loaded).__name__, "a dictionary of tensors by name")
    entries = {_name(file, name): _entry(file, name, value, stored_sizes) for name, value in loaded.items()}
    return TorchFile(file, entries, {name: value.detach() for name, value in loaded.items()})


def _check_archive(file: Path) -> set[int]:
    """The sizes in bytes of the stored arrays of a zip archive.  Errors: CheckpointError for another file."""
    if not file.is_file():
        raise unreadable(file, FileNotFoundError())
    if not zipfile.is_zipfile(file):
        with file.open("rb") as stream:
            is_pointer = stream.read(23) == b"version https://git-lfs"
        got = (
            "a Git LFS pointer" if is_pointer else "no zip archive (a cut file, or one of a torch before 1.6)"
        )
        raise _bad(file, got, "the zip archive that torch.save writes")
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise _bad(file, f"compressed member {shown(member.filename)}", "members stored as they are")
        return {member.file_size for member in archive.infolist() if "/data/" in member.filename}


def _name(file: Path, name: Any) -> str:
    if not isinstance(name, str):
        raise _bad(file, f"key {shown(name)}", "names of tensors")
    return name


def _entry(file: Path, name: str, value: Any, stored_sizes: set[int]) -> TorchEntry:
    what = f"{file}: tensor {shown(name)}"
    if not isinstance(value, torch.Tensor):
        got = type(value).__name__
        raise CheckpointError(what, got=got, need="a tensor", fix="Save the state_dict of the head alone.")
    is_dense = value.layout is torch.strided and value.device.type == "cpu" and value.dtype in _DTYPES
    if not is_dense:
        got = f"{value.dtype}, {value.layout}, {value.device}"
        raise CheckpointError(what, got=got, need="a dense tensor of a plain dtype", fix=_CONVERT)
    size_bytes = value.numel() * value.element_size()
    stored_bytes = value.untyped_storage().nbytes()
    # one byte in the file may claim to be a tensor of any size, and an array to be longer than it is
    if size_bytes > stored_bytes or stored_bytes not in stored_sizes:
        got = f"{size_bytes} bytes of {list(value.shape)} out of {stored_bytes} stored"
        raise CheckpointError(what, got=got, need="every element in the file", fix=_CONVERT)
    return TorchEntry(name, _DTYPES[value.dtype], tuple(value.shape), size_bytes)


def _reason(error: Exception) -> str:
    """What went wrong, without torch's advice to load the file as code."""
    asked = re.search(r"GLOBAL (\S+)", str(error))
    if asked:
        return f"a pickle that asks for {asked[1]}"
    if isinstance(error, pickle.UnpicklingError):
        return "a damaged pickle, or one that holds more than tensors"
    line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__} ({line[:120]})"


def _bad(file: Path, got: str, need: str) -> CheckpointError:
    return CheckpointError(str(file), got=got, need=need, fix=_CONVERT)
