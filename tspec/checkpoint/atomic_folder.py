"""A folder that is there whole or not at all, whoever is interrupted and however many build it at once.

Knows nothing of what is in the folder: `fill` writes it, `is_complete` judges it.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from tspec.core.errors import CheckpointError


def create_folder(target: Path, fill: Callable[[Path], None], is_complete: Callable[[Path], bool]) -> None:
    """Build `target` unless it is complete: `fill` writes into a folder beside it, which then takes its name.

    A second process waits, and then finds the folder complete. What an interrupted run left behind, and a
    target that is not complete, are removed. Whatever `fill` raises leaves no trace.
    Errors: CheckpointError when what `fill` wrote is not complete; OSError when it cannot be stored.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.partial"
    replaced = target.parent / f".{target.name}.replaced"
    with FileLock(target.parent / f".{target.name}.lock"):
        if is_complete(target):
            return
        _remove(partial)
        _remove(replaced)
        partial.mkdir()
        try:
            fill(partial)
            if not is_complete(partial):
                got = ", ".join(sorted(each.name for each in partial.iterdir())) or "nothing"
                raise CheckpointError(
                    f"building {target}", got=got, need="a whole folder", fix="Report this."
                )
            _sync(partial)
            if target.exists():
                os.replace(target, replaced)
            os.replace(partial, target)
            _sync_path(target.parent)
        finally:
            _remove(partial)
            _remove(replaced)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync_path(path)
    _sync_path(folder)


def _sync_path(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows syncs no folders
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
