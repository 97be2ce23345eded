"""The tensors of a checkpoint as memory-mapped views, and whether they are the ones the model needs.

Loading copies nothing and checks no values: a weight that is NaN loads as NaN. Knows no model; the names and
shapes that a model needs come in as `expected`.
"""

import logging
import mmap
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch

from tspec.checkpoint.header import DTYPE_BITS, TensorEntry
from tspec.checkpoint.index import find_tensors
from tspec.checkpoint.json_object import shown, unreadable
from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.core.errors import CheckpointError

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_DTYPES = {"F32": DType.FLOAT32, "BF16": DType.BFLOAT16, "F16": DType.FLOAT16}
_INTEGERS = ("I64", "I32")
_TORCH_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
}
_HARMLESS_PARTS = (".rotary_emb.",)  # tables that older exporters stored; they follow from the config
_QUANTISED_ENDINGS = (".qweight", ".qzeros", ".g_idx", ".scales", ".weight_scale", ".weight_packed")
_DEQUANTISE = "Use the unquantised checkpoint, or convert it to F32, BF16 or F16."
_MAX_LISTED = 8
_log = logging.getLogger("tspec")


class Described(Protocol):
    """A tensor's name in its file, its dtype (the safetensors format's name for it) and its shape."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def size_bytes(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a folder. Open one with `open_checkpoint`."""

    folder: Path
    tensors: dict[str, TensorEntry]
    _mapped: dict[Path, mmap.mmap] = field(default_factory=dict, init=False, repr=False, compare=False)

    def load(self, name: str) -> torch.Tensor:
        """One tensor, in its own shape and dtype: a view of the mapped file, which must not be written to.

        Errors    CheckpointError for a name that is not there, a dtype other than F32, BF16, F16, I64 and I32, an
                  unreadable file
        Cost      no copy, unless the tensor starts at an offset that its dtype does not divide
        """
        entry = self.tensors.get(name)
        if entry is None:
            raise CheckpointError(
                f"{self.folder}: tensor {shown(name)}",
                got="no such tensor",
                need="one of the checkpoint's",
                fix="Check that the weights belong to config.json.",
            )
        if entry.dtype not in _TORCH_DTYPES:
            what = f"{entry.file}: tensor {shown(name)}"
            raise CheckpointError(what, got=entry.dtype, need=", ".join(_TORCH_DTYPES), fix=_DEQUANTISE)
        dtype = _TORCH_DTYPES[entry.dtype]
        if entry.size_bytes == 0:
            return torch.empty(entry.shape, dtype=dtype)
        data = _bytes_of(self._map(entry.file), entry)
        if entry.start * 8 % DTYPE_BITS[entry.dtype]:
            data = data.clone()
        return data.view(dtype).view(entry.shape)

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._mapped:
            try:
                with file.open("rb") as stream:
                    self._mapped[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise unreadable(file, error) from error
            except ValueError as error:  # an empty file cannot be mapped
                raise _changed(file, 0) from error
        return self._mapped[file]


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """The checkpoint in a folder, its headers validated.  Errors: CheckpointError, see `find_tensors`."""
    return Checkpoint(Path(folder), find_tensors(Path(folder)))


def account(
    checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]], ignored: Collection[str] = ()
) -> None:
    """Raise one CheckpointError that lists every tensor that is missing, unexpected, misshapen or mistyped.

    expected  name to shape of every tensor that the model needs
    ignored   further names that may be there without being needed; stored rotary tables always may, and so
              may a head of the embedding's shape where the model ties them
    """
    account_tensors(str(checkpoint.folder), checkpoint.tensors, expected, ignored)


def account_tensors(
    where: str,
    tensors: Mapping[str, Described],
    expected: Mapping[str, tuple[int, ...]],
    ignored: Collection[str] = (),
    integers: Collection[str] = (),
) -> None:
    """As `account`, for tensors out of any file.

    where     what the error names
    integers  those of `expected` that have to be I64 or I32
    """
    found = {name: entry for name, entry in tensors.items() if name in expected}
    faults = {
        "missing": [shown(name) for name in expected if name not in tensors],
        "unexpected": [
            f"{shown(name)} {entry.dtype}"
            for name, entry in tensors.items()
            if name not in expected and name not in ignored and not _is_harmless(entry, expected)
        ],
        "of wrong shape": [
            f"{shown(name)} {list(entry.shape)}, not {list(expected[name])}"
            for name, entry in found.items()
            if entry.shape != tuple(expected[name])
        ],
        "of unsupported dtype": [
            f"{shown(name)} {entry.dtype}"
            for name, entry in found.items()
            if entry.dtype not in (_INTEGERS if name in integers else _DTYPES)
        ],
    }
    if any(faults.values()):
        raise CheckpointError(
            f"tensors of {where}",
            got="; ".join(_listing(kind, names) for kind, names in faults.items() if names),
            need=f"the {len(expected)} tensors that config.json asks for, as F32, BF16 or F16",
            fix=_advice(tensors),
        )


def resolve_tying(config: ModelConfig, checkpoint: Checkpoint) -> ModelConfig:
    """The config with `tie_word_embeddings` as the weights have it, for `lm_head.weight` is what decides.

    flag  head in the file         result
    yes   none, or the embedding   tied
    yes   another one              untied: the head is used, and the log says so
    no    any                      untied
    no    none                     CheckpointError: there is nothing to compute logits with
    """
    if not config.tie_word_embeddings:
        if HEAD in checkpoint.tensors:
            return config
        raise CheckpointError(
            f"{checkpoint.folder}: tensor '{HEAD}'",
            got="none, with tie_word_embeddings false",
            need="an output head",
            fix="Fetch the missing weights; if the head is the embedding, set tie_word_embeddings to true.",
        )
    if HEAD not in checkpoint.tensors or _is_same_tensor(checkpoint, HEAD, EMBEDDING):
        return config
    _log.warning(
        "%s: tie_word_embeddings is true, but %s differs from %s: using the head of the file",
        checkpoint.folder,
        HEAD,
        EMBEDDING,
    )
    return replace(config, tie_word_embeddings=False)


def checkpoint_dtype(checkpoint: Checkpoint) -> DType:
    """The dtype in which most bytes of the matrices are stored.  Errors: CheckpointError for no matrix."""
    return most_common_dtype(str(checkpoint.folder), checkpoint.tensors)


def most_common_dtype(where: str, tensors: Mapping[str, Described]) -> DType:
    """As `checkpoint_dtype`, for tensors out of any file; `where` is what the error names."""
    size_bytes = dict.fromkeys(_DTYPES, 0)
    for entry in tensors.values():
        if len(entry.shape) >= 2 and entry.dtype in size_bytes:
            size_bytes[entry.dtype] += entry.size_bytes
    most = max(size_bytes, key=lambda dtype: size_bytes[dtype])
    if size_bytes[most] == 0:
        raise CheckpointError(
            f"weights in {where}",
            got="no matrix of these dtypes",
            need="matrices in F32, BF16 or F16",
            fix=_advice(tensors),
        )
    return _DTYPES[most]


def _bytes_of(mapped: mmap.mmap, entry: TensorEntry) -> torch.Tensor:
    if len(mapped) < entry.start + entry.size_bytes:
        raise _changed(entry.file, len(mapped))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")  # as it should be
        return torch.frombuffer(mapped, dtype=torch.uint8, count=entry.size_bytes, offset=entry.start)


def _changed(file: Path, size_bytes: int) -> CheckpointError:
    need = "the file as it was when its header was read"
    return CheckpointError(str(file), got=f"{size_bytes} bytes", need=need, fix="Load the checkpoint again.")


def _is_same_tensor(checkpoint: Checkpoint, name: str, other: str) -> bool:
    entry, other_entry = checkpoint.tensors[name], checkpoint.tensors.get(other)
    if other_entry is None or (entry.shape, entry.dtype) != (other_entry.shape, other_entry.dtype):
        return False
    # bytes, not values: a NaN differs from itself
    return torch.equal(checkpoint.load(name).view(torch.uint8), checkpoint.load(other).view(torch.uint8))


def _is_harmless(entry: Described, expected: Mapping[str, tuple[int, ...]]) -> bool:
    is_tied_head = entry.name == HEAD and HEAD not in expected and entry.shape == expected.get(EMBEDDING)
    return is_tied_head or any(part in entry.name for part in _HARMLESS_PARTS)


def _listing(kind: str, names: list[str]) -> str:
    more = f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{len(names)} {kind} ({', '.join(names[:_MAX_LISTED])}{more})"


def _advice(tensors: Mapping[str, Described]) -> str:
    if any(_is_quantised(entry) for entry in tensors.values()):
        return f"The weights look quantised (GPTQ, AWQ, FP8 or the like). {_DEQUANTISE}"
    return "Check that weights and config.json belong to the same model."


def _is_quantised(entry: Described) -> bool:
    return entry.name.endswith(_QUANTISED_ENDINGS) or (len(entry.shape) >= 2 and entry.dtype not in _DTYPES)
