"""Configurations that tuning found, in one JSON file: read once at start, written whole by one process at a time.

    {"schema": 1, "entries": [{"device": "NVIDIA H200", "compiler": "triton 3.9.0", "op": "linear_add",
                               "dtype": "bfloat16", "shape": {"k": 4096, "n": 4096}, "config": {"block_n": 64, …}}]}

An entry holds for one device, compiler, op, dtype and shape: never for rows, nodes or a bucket, on which bits may not
depend. What a configuration means, and whether it is legal, only its backend knows: `parse` says so, of what is read
and of what is to be written.

Trust     nothing in the file is: what is damaged, illegal or of another compiler is logged once and set aside
Writers   hold a lock, read what is there, and put the new file in the place of the old one in one step. One that is
          killed leaves the old file, or the new one
Holds no default: those ship with each backend, and the file never repeats them.
"""

import functools
import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import platformdirs

from tspec.core.errors import ConfigError, ContractError
from tspec.core.whole_files import replace_text

SCHEMA = 1
"""Of the file, and in its name: versions of tspec that differ in it do not see each other's file."""

FOLDER_VARIABLE = "TSPEC_TUNED_DIR"
"""The environment variable that replaces the folder of the file."""

LOCK_SECONDS = 60.0
"""How long a writer waits for the others."""

MAX_TOLD = 3
"""Entries whose faults are told one by one."""

_TEXTS = ("device", "compiler", "op", "dtype")
_FIX = f"Give another folder in {FOLDER_VARIABLE}."
_logger = logging.getLogger("tspec")


@dataclass(frozen=True, slots=True)
class TunedKey:
    """What a configuration was found for. `shape` is sorted by name, as (("k", 4096), ("n", 4096))."""

    device: str
    compiler: str
    op: str
    dtype: str
    shape: tuple[tuple[str, int], ...]


Config = TypeVar("Config")
Parse = Callable[[TunedKey, Mapping[str, int | None]], Config]
"""From an entry's numbers to a backend's frozen dataclass. ContractError says why they are no legal one."""


@dataclass(slots=True)
class TunedStore(Generic[Config]):
    """The entries of `file` for one device and compiler. Made by `load_tuned`."""

    file: Path
    device: str
    compiler: str
    parse: Parse[Config]
    entries: dict[TunedKey, Config] = field(default_factory=dict)

    def lookup(self, op: str, dtype: str, **shape: int) -> Config | None:
        """The configuration that was found, None where there is none."""
        return self.entries.get(self._key(op, dtype, shape))

    def put(self, op: str, dtype: str, config: Config, **shape: int) -> None:
        """Add or replace one entry, here and in the file. What others wrote meanwhile stays.

        Errors   ContractError for a configuration that `parse` refuses; ConfigError for a folder that cannot be
                 written, or is locked for LOCK_SECONDS
        """
        key = self._key(op, dtype, shape)
        numbers: dict[str, int | None] = asdict(config)  # type: ignore[call-overload]
        self.entries[key] = self.parse(key, numbers)
        _write_entry(self.file, key, numbers)

    def _key(self, op: str, dtype: str, shape: Mapping[str, int]) -> TunedKey:
        return TunedKey(self.device, self.compiler, op, dtype, tuple(sorted(shape.items())))


def tuned_file() -> Path:
    """Return the user's file, in TSPEC_TUNED_DIR or else in the user's cache folder. It need not exist.

    Errors   ConfigError where the variable names no folder
    """
    asked = os.environ.get(FOLDER_VARIABLE)
    if asked is None:
        folder = _user_folder()
    else:
        folder = Path(asked).expanduser()
        if not asked or (folder.exists() and not folder.is_dir()):
            raise ConfigError(
                FOLDER_VARIABLE, got=repr(asked), need="a folder, or the name of a new one", fix="Change it."
            )
    return folder / f"tuned-v{SCHEMA}.json"


def _user_folder() -> Path:
    try:
        return Path(platformdirs.user_cache_dir("tspec", appauthor=False)) / "tuned"
    except RuntimeError:  # neither HOME nor an account
        return Path(tempfile.gettempdir()) / "tspec-tuned"


def load_tuned(file: Path, device: str, compiler: str, parse: Parse[Config]) -> TunedStore[Config]:
    """Read what `file` has for this device and compiler. A file that is missing or damaged is an empty one.

    Raises nothing: all that is set aside is logged, once for each file and reason.
    """
    store = TunedStore(file, device, compiler, parse)
    try:
        listed = _read_entries(file)
    except _DamagedFile as error:
        _log_once(logging.WARNING, f"{file} is set aside: {error}.")
        return store
    stale: Counter[str] = Counter()
    refused: list[str] = []
    num_foreign = 0
    for number, entry in enumerate(listed):
        try:
            key, numbers = _parse_entry(entry)
            if key.device != device:
                num_foreign += 1
            elif key.compiler != compiler:
                stale[key.compiler] += 1
            else:
                store.entries[key] = parse(key, numbers)
        except (ValueError, ContractError) as error:
            refused.append(f"Entry {number}: {error}")
    for old, count in stale.items():
        told = f"{count} entries tuned with {old} are set aside, since this is {compiler}"
        _log_once(logging.WARNING, f"{file}: {told}.")
    if refused:
        told = f"{len(refused)} entries that are not legal are set aside"
        _log_once(logging.WARNING, " ".join((f"{file}: {told}.", *refused[:MAX_TOLD])))
    if num_foreign:
        _log_once(logging.INFO, f"{file}: {num_foreign} entries are for other devices than {device}.")
    return store


def readable_entries(file: Path) -> list[tuple[TunedKey, dict[str, int | None]]]:
    """What stands in a file for any device, whether or not it is legal there: for reports. A damaged file has none."""
    try:
        return [_parse_entry(entry) for entry in _read_entries(file) if _is_entry(entry)]
    except _DamagedFile as error:
        _log_once(logging.WARNING, f"{file} is set aside: {error}.")
        return []


class _DamagedFile(Exception):
    """Why a whole file cannot be used."""


def _read_entries(file: Path) -> list[Any]:
    """The entries as they stand in the file, not looked at; none where there is no file."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _DamagedFile(f"it cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise _DamagedFile(f"it is no JSON ({error})") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise _DamagedFile(f"it is no file of tuned configurations of schema {SCHEMA}")
    if not isinstance(content.get("entries"), list):
        raise _DamagedFile("it has no list of entries")
    return content["entries"]


def _parse_entry(entry: Any) -> tuple[TunedKey, dict[str, int | None]]:
    """An entry as a key and numbers. Errors: ValueError for anything else than the module's picture."""
    if not isinstance(entry, dict) or entry.keys() != {*_TEXTS, "shape", "config"}:
        raise ValueError(f"its fields are not {', '.join(_TEXTS)}, shape and config.")
    device, compiler, op, dtype = (entry[name] for name in _TEXTS)
    if not all(isinstance(text, str) for text in (device, compiler, op, dtype)):
        raise ValueError(f"one of {', '.join(_TEXTS)} is no text.")
    shape, numbers = entry["shape"], entry["config"]
    if not isinstance(shape, dict) or not all(_is_number(size) and size > 0 for size in shape.values()):
        raise ValueError("its shape is not of whole numbers above 0.")
    if not isinstance(numbers, dict) or not all(
        each is None or _is_number(each) for each in numbers.values()
    ):
        raise ValueError("its config is not of whole numbers.")
    return TunedKey(device, compiler, op, dtype, tuple(sorted(shape.items()))), numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _write_entry(file: Path, key: TunedKey, numbers: Mapping[str, int | None]) -> None:
    """Join one entry with those that are in the file now, under its lock. A damaged file is kept beside it."""
    from filelock import FileLock, Timeout  # only who writes needs it

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock", timeout=LOCK_SECONDS):
            kept = [entry for entry in _entries_to_keep(file) if _parse_entry(entry)[0] != key]
            entry = {name: getattr(key, name) for name in _TEXTS}
            entry |= {"shape": dict(key.shape), "config": dict(numbers)}
            replace_text(file, json.dumps({"schema": SCHEMA, "entries": [*kept, entry]}, indent=1) + "\n")
    except Timeout as error:
        raise ConfigError(
            str(file), got=f"a lock held for {LOCK_SECONDS:.0f} s", need="to write it", fix=_FIX
        ) from error
    except OSError as error:
        raise ConfigError(
            str(file), got=error.strerror or repr(error), need="to write it", fix=_FIX
        ) from error


def _entries_to_keep(file: Path) -> list[Any]:
    """All entries that can be read, also those of other devices and compilers."""
    try:
        listed = _read_entries(file)
    except _DamagedFile as error:
        _log_once(logging.WARNING, f"{file} is moved to {file.name}.damaged: {error}.")
        os.replace(file, f"{file}.damaged")
        return []
    return [entry for entry in listed if _is_entry(entry)]


def _is_entry(entry: Any) -> bool:
    try:
        _parse_entry(entry)
    except ValueError:
        return False
    return True


@functools.cache
def _log_once(level: int, message: str) -> None:
    _logger.log(level, message)
