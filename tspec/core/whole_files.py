"""Files that are written whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


def replace_file(file: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a new file beside `file`, then put it in its place: whoever reads finds the old one or the new.

    Two may not write the same file at a time.  Errors: OSError; the old file is left as it was
    """
    new = file.with_name(f"{file.name}.new")
    with open(new, "wb") as out:
        write(out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(new, file)


def replace_text(file: Path, text: str) -> None:
    """The same for a text, in UTF-8."""
    replace_file(file, lambda out: out.write(text.encode()))
