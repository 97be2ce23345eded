"""JSON objects out of untrusted files: bounded in size, UTF-8, no key given twice.  Knows no file format."""

import json
import reprlib
from pathlib import Path
from typing import Any

from tspec.core.errors import CheckpointError

MAX_JSON_BYTES = 100_000_000
"""Largest JSON file or header that is read; the same limit as the safetensors format sets itself."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 120
_REPR.maxlist = _REPR.maxdict = 8


def shown(value: object) -> str:
    """A value as error messages show it: one line, cut where it is long or deep."""
    return _REPR.repr(value)


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Errors: CheckpointError when the file is absent, unreadable, over MAX_JSON_BYTES, or not a JSON object.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_JSON_BYTES:
            raise CheckpointError(
                str(path),
                got=f"{size_bytes} bytes",
                need=f"at most {MAX_JSON_BYTES}",
                fix="Check that the file is what its name says.",
            )
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    return parse_object(data, str(path))


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `data`; `what` names it in errors.

    Errors: CheckpointError for another encoding than UTF-8, bad JSON, a key given twice, or not an object.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are both ValueErrors
        raise CheckpointError(
            what, got=_reason(error), need="a JSON object in UTF-8, no key twice", fix="Fetch the file again."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(what, got=shown(value), need="a JSON object", fix="Fetch the file again.")
    return value


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """The error for a file that the system would not let us read."""
    if isinstance(error, FileNotFoundError):
        return CheckpointError(
            str(path), got="no such file", need="a readable file", fix="Complete the checkpoint folder."
        )
    got = error.strerror or shown(error)
    return CheckpointError(str(path), got=got, need="a readable file", fix="Check path and permissions.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise ValueError(f"key {shown(key)} twice")
        unique[key] = value
    return unique


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "JSON nested too deep"
    if isinstance(error, UnicodeDecodeError):
        return f"bytes that are not UTF-8 at offset {error.start}"
    return str(error)
