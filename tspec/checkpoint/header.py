"""The header of a safetensors file, read and validated before anything is allocated from what it says.

A file is: 8 bytes, the header's length (little endian); the header, a JSON object of tensor name to dtype,
shape and byte range; then the data, which the ranges have to cover without holes or overlaps, to the last
byte.  Reads no tensor data.

Source    https://github.com/huggingface/safetensors, README, section "Format"
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tspec.checkpoint.json_object import MAX_JSON_BYTES, parse_object, shown, unreadable
from tspec.core.errors import CheckpointError

DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "I16": 16,
    "U16": 16,
    "I32": 32,
    "U32": 32,
    "I64": 64,
    "U64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "C64": 64,
}
"""Bits an element, of every dtype that the format knows."""

_LENGTH_BYTES = 8
_MAX_RANK = 64
_MAX_ELEMENTS = 2**63 - 1
_LFS_POINTER = b"version https://git-lfs"
_REFETCH = "The file is damaged: fetch it again."


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies. `dtype` is the format's own name (a key of DTYPE_BITS).

    start       offset of the first byte, from the beginning of the file
    size_bytes  shape and dtype say the same number
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    size_bytes: int


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Every tensor of a safetensors file, by name.

    Errors    CheckpointError naming the file, and the tensor if it is one's fault, for any departure from the
              format
    Cost      reads and parses the header alone: at most 100 MB, and never more than the file holds
    """
    header, file_bytes = _read_header_bytes(file)
    raw = parse_object(header, f"{file}: header")
    raw.pop("__metadata__", None)
    data_start = _LENGTH_BYTES + len(header)
    entries = [_entry(file, data_start, name, fields) for name, fields in raw.items()]
    _check_layout(file, entries, data_start, file_bytes)
    return {entry.name: entry for entry in entries}


def _read_header_bytes(file: Path) -> tuple[bytes, int]:
    try:
        if not file.is_file():
            fix = "Complete the checkpoint folder."
            raise _bad(file, "file", "no regular file", "a safetensors file", fix)
        with file.open("rb") as stream:
            file_bytes = file.stat().st_size
            prefix = stream.read(_LENGTH_BYTES)
            if len(prefix) < _LENGTH_BYTES:
                raise _bad(file, "file", f"{file_bytes} bytes", "8 bytes of header length and a header")
            length = int.from_bytes(prefix, "little")
            room = min(MAX_JSON_BYTES, file_bytes - _LENGTH_BYTES)
            if not 2 <= length <= room:
                need = f"2 to {room}: 100 MB at most, and no more than the file's {file_bytes} bytes hold"
                fix = _length_fix(prefix + stream.read(16))
                raise _bad(file, "header length", f"{length} bytes", need, fix)
            return stream.read(length), file_bytes
    except OSError as error:
        raise unreadable(file, error) from error


def _length_fix(beginning: bytes) -> str:
    if beginning.startswith(_LFS_POINTER):
        return "This is a Git LFS pointer, not the weights: fetch the file it stands for (git lfs pull)."
    return _REFETCH


def _entry(file: Path, data_start: int, name: str, fields: Any) -> TensorEntry:
    what = f"tensor {shown(name)}"
    if not isinstance(fields, dict):
        raise _bad(file, what, shown(fields), "an object with dtype, shape and data_offsets")
    for key in ("dtype", "shape", "data_offsets"):
        if key not in fields:
            raise _bad(file, what, f"no {key}", "dtype, shape and data_offsets")
    dtype, shape = fields["dtype"], fields["shape"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        fix = "If it is a newer format, convert the checkpoint to F32, BF16 or F16."
        raise _bad(file, f"{what}, dtype", shown(dtype), f"one of {', '.join(DTYPE_BITS)}", fix)
    start, end = _offsets(file, what, fields["data_offsets"])
    bits = _num_elements(file, what, shape) * DTYPE_BITS[dtype]
    if bits != (end - start) * 8:
        need = f"{bits / 8:.10g} bytes for {dtype} {shown(shape)}"
        raise _bad(file, f"{what}, data_offsets", f"{end - start} bytes ({start} to {end})", need)
    return TensorEntry(name, dtype, tuple(shape), file, data_start + start, end - start)


def _offsets(file: Path, what: str, offsets: Any) -> tuple[int, int]:
    is_pair = isinstance(offsets, list) and len(offsets) == 2 and all(type(each) is int for each in offsets)
    if not is_pair or not 0 <= offsets[0] <= offsets[1]:
        raise _bad(file, f"{what}, data_offsets", shown(offsets), "[start, end] with 0 <= start <= end")
    return offsets[0], offsets[1]


def _num_elements(file: Path, what: str, shape: Any) -> int:
    need = f"a list of at most {_MAX_RANK} dimensions, non-negative integers, with a product below 2**63"
    is_list = isinstance(shape, list) and len(shape) <= _MAX_RANK
    if not is_list or not all(type(dim) is int and 0 <= dim <= _MAX_ELEMENTS for dim in shape):
        raise _bad(file, f"{what}, shape", shown(shape), need)
    if math.prod(max(dim, 1) for dim in shape) > _MAX_ELEMENTS:  # strides must fit, even beside a 0
        raise _bad(file, f"{what}, shape", shown(shape), need)
    return math.prod(shape)


def _check_layout(file: Path, entries: list[TensorEntry], data_start: int, file_bytes: int) -> None:
    """The tensors, in the order of their bytes, have to meet end to end from the header to the file's end."""
    reached, before = data_start, "the header"
    for entry in sorted(entries, key=lambda each: (each.start, each.size_bytes)):
        if entry.start != reached:
            fault = "overlap" if entry.start < reached else "hole"
            got = f"start {entry.start - data_start} ({fault} after {before})"
            need = f"start {reached - data_start}"
            raise _bad(file, f"tensor {shown(entry.name)}, data_offsets", got, need)
        reached, before = entry.start + entry.size_bytes, f"tensor {shown(entry.name)}"
        if reached > file_bytes:
            need = f"{reached} bytes: the file is cut short"
            raise _bad(file, f"{before}, data", f"a file of {file_bytes} bytes", need)
    if reached != file_bytes:
        got = f"{file_bytes - reached} bytes after {before}"
        raise _bad(file, "end of file", got, "no trailing bytes")


def _bad(file: Path, what: str, got: str, need: str, fix: str = _REFETCH) -> CheckpointError:
    return CheckpointError(f"{file}: {what}", got=got, need=need, fix=fix)
