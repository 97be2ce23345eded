"""Runs the command line: in this process where possible, else as a process of its own."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tspec.cli.main import main

PROGRAM = [sys.executable, "-m", "tspec.cli.main"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    status: int
    out: str
    err: str

    def assert_fails(self, status: int, *words: str) -> None:
        """One sentence on standard error that has the words, and nothing on standard output."""
        assert (self.status, self.out) == (status, ""), self.err
        assert self.err.startswith("tspec ") and self.err.endswith(".\n") and self.err.count("\n") == 1
        assert [word for word in words if word not in self.err] == [], self.err

    def assert_is_refused(self, *words: str) -> None:
        """The parser's own message after the usage lines, and nothing on standard output."""
        assert (self.status, self.out) == (2, "")
        assert self.err.startswith("usage: tspec")
        assert [word for word in words if word not in self.err] == [], self.err


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs `tspec` with arguments, and bytes on standard input (None: it is closed)."""

    def run_here(*arguments: object, stdin: bytes | None = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        try:
            status = main([os.fspath(each) if isinstance(each, Path) else str(each) for each in arguments])
        except SystemExit as leaving:  # how argparse refuses
            status = leaving.code
        return Outcome(status, *capsys.readouterr())

    return run_here


def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
    """Start `tspec` as a process of its own, its standard output and error to be read here."""
    command = [*PROGRAM, *(each if isinstance(each, bytes) else str(each) for each in arguments)]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **streams | options)
