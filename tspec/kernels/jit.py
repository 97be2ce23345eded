"""The one way tspec compiles native functions: Numba, without the GIL, from a private on-disk cache.

Numba's own cache sits beside the source (often read-only) or under HOME (sometimes unset), and looks only at
the file a function is in: after a change of a callee in another file it would hand out old machine code. Here
the folder's name is a hash of every native source, so any change starts a fresh folder. Knows no kernel.
"""

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numba
import platformdirs
from numba.core.caching import FunctionCache

KEPT_KEYS = 4
"""Cache folders kept, the newest ones: one for each version or edit of the sources."""

_KEY_LENGTH = 16
_UNPICKLING_ERRORS = (
    EOFError,
    pickle.PickleError,
    AttributeError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
)
_UNREADABLE = (*_UNPICKLING_ERRORS, OSError, RuntimeError)  # the last: an object file that LLVM refuses
_PACKAGE = Path(__file__).resolve().parent.parent
_numba_config: Any = numba.config
_config_lock = threading.Lock()
_logger = logging.getLogger("tspec")


def native(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function so that it compiles on first call, once for each set of argument types and machine.

    options   passed on to `numba.njit` (`parallel`, `fastmath`, `inline`, …); nogil, the cache and the arithmetic of
              IEEE 754 are set: a division by zero gives a number, since an exception would leave other threads waiting

    A cache that cannot be written or read costs time, is logged once, and never raises.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        compiled: Any = numba.njit(nogil=True, error_model="numpy", **options)(function)
        folder = cache_folder()
        if folder is not None and hasattr(compiled, "enable_caching"):  # not under NUMBA_DISABLE_JIT
            with _numba_cache_in(folder), contextlib.suppress(RuntimeError):  # a function without a file
                compiled._cache = _ForgivingCache(function)
        return compiled

    return decorate


@functools.cache
def cache_folder() -> Path | None:
    """Return the private folder that this version of the sources compiles into, None if there can be none.

    It lies in the user's cache folder, else in one for this user among the system's temporary files.
    """
    key = source_key(native_sources())
    for parent in _cache_parents():
        if _is_private(parent) and _is_private(parent / key):
            _prune(parent, kept=key)
            return parent / key
        _log_once("%s cannot hold compiled code: not writable, or not this user's alone.", parent)
    _log_once("Native functions are compiled again in every process: no folder can hold them.")
    return None


def native_sources() -> list[Path]:
    """Return every file whose functions or constants may end up in compiled code."""
    folders = (_PACKAGE / "core", _PACKAGE / "kernels" / "cpu", _PACKAGE / "proposers")
    return [Path(__file__).resolve(), *(file for folder in folders for file in sorted(folder.rglob("*.py")))]


def source_key(sources: Iterable[Path]) -> str:
    """Return a hash of the versions of tspec and Numba, and of the names and bytes of `sources`."""
    digest = hashlib.sha256(f"{_tspec_version()} {numba.__version__}".encode())
    for file in sources:
        content = file.read_bytes()
        digest.update(f"\n{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:_KEY_LENGTH]


class _ForgivingCache(FunctionCache):
    """Numba's cache, in which a damaged file is a miss and a full disk only costs the next process time."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except _UNREADABLE as error:
            _log_once("Unreadable compiled code in %s (%s): compiling again.", self.cache_path, repr(error))
            with contextlib.suppress(OSError):
                self.flush()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _log_once("Compiled code cannot be kept in %s (%s).", self.cache_path, repr(error))


def _cache_parents() -> Iterator[Path]:
    with contextlib.suppress(RuntimeError):  # neither HOME nor an account; older versions leave a "~"
        user = Path(platformdirs.user_cache_dir("tspec", appauthor=False))
        if user.is_absolute():
            yield user / "jit"
    with contextlib.suppress(OSError):  # no folder of temporary files at all
        owner = os.getuid() if hasattr(os, "getuid") else "user"
        yield Path(tempfile.gettempdir()) / f"tspec-jit-{owner}"


def _is_private(folder: Path) -> bool:
    """Create `folder` if need be; whether this user owns it, alone may write it, and can.

    Cached code is loaded without further checks, so a folder that others may write is never used.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return False
    if not hasattr(os, "geteuid"):
        return stat.S_ISDIR(status.st_mode)
    shared_bits = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not shared_bits


def _prune(parent: Path, kept: str) -> None:
    """Remove the oldest cache folders. Their running processes lose only what they would still have saved."""
    with contextlib.suppress(OSError):
        os.utime(parent / kept)
        keys = [each for each in parent.iterdir() if len(each.name) == _KEY_LENGTH and not each.is_symlink()]
        keys.sort(key=lambda each: each.stat().st_mtime, reverse=True)
        for old in keys[KEPT_KEYS:]:
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _numba_cache_in(folder: Path) -> Iterator[None]:
    """Point Numba at `folder` while a function is decorated; other users of Numba keep their own setting."""
    with _config_lock:
        before = _numba_config.CACHE_DIR
        _numba_config.CACHE_DIR = str(folder)
        try:
            yield
        finally:
            _numba_config.CACHE_DIR = before


def _tspec_version() -> str:
    try:
        return metadata.version("tspec")
    except metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def _log_once(message: str, *values: object) -> None:
    _logger.warning(message, *values)
