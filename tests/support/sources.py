"""The project's own files, for tests that read them as text: what a fresh clone has, prompts left out."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tspec"
_FOLDERS = ("tspec", "autotune", "benchmarks", "docs", "examples", "tests", ".ci")
_TOP = ("*.md", "*.toml", "*.txt", "Makefile")
_TEXT = {".py", ".md", ".toml", ".txt", ".json", ""}


def python_files(*folders: str) -> list[Path]:
    """Python files below folders of the project, in order."""
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def text_files() -> Iterator[Path]:
    """Every file that people write, data apart."""
    for pattern in _TOP:
        yield from sorted(ROOT.glob(pattern))
    for folder in _FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.is_file() and file.suffix in _TEXT and "benchmarks/data" not in file.as_posix():
                yield file


def name_of(file: Path) -> str:
    """A file as people name it: its path from the project's folder."""
    return file.relative_to(ROOT).as_posix()
