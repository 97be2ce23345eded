"""Files of texts that users give: read whole, and what is wrong with them is named by its place."""

import json
from pathlib import Path

from tspec.core.errors import ConfigError


def decode_utf8(data: bytes, source: str) -> str:
    """Text of input bytes. Errors: ConfigError naming the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            source,
            got=f"byte 0x{data[error.start]:02x} at offset {error.start}",
            need="UTF-8 text",
            fix="Convert it, for instance with iconv.",
        ) from error


def read_json_lines(file: Path, key: str) -> list[str]:
    """The strings under `key` of a JSON lines file.

    Errors   ConfigError for a file that cannot be read or holds no lines, and naming the line that is wrong
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            str(file), got=error.strerror, need="a file of JSON lines", fix="Name another file."
        ) from error
    found = []
    # Not splitlines(): a JSON string may hold U+2028 and other things that it takes for the end of a line.
    for number, line in enumerate(decode_utf8(data, str(file)).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[key]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise ConfigError(
                f"{file}, line {number}",
                got=repr(line[:40]),
                need=f'a JSON object with a string "{key}"',
                fix="Correct the line.",
            )
        found.append(text)
    if not found:
        raise ConfigError(str(file), got="no lines", need="at least one", fix="Add one.")
    return found
