"""The command line as a whole: exit codes, tracebacks, interrupts, and output that cannot be written.

Run: pytest tests/cli/test_main.py
"""

import logging
import re
import signal
import subprocess

import pytest
from support.command_line import PROGRAM, start

from tspec import __version__
from tspec.cli import inspect, main


@pytest.fixture
def raising(monkeypatch):
    """Return a function that makes `tspec inspect` raise."""

    def make(error):
        def handler(args):
            raise error

        monkeypatch.setattr(inspect, "run", handler)

    return make


def test_the_version_is_printed(run):
    outcome = run("--version")
    assert (outcome.status, outcome.out) == (0, f"tspec {__version__}\n")


def test_help_names_every_subcommand(run):
    outcome = run("--help")
    assert outcome.status == 0
    assert all(name in outcome.out for name in ("generate", "bench", "inspect", "demo-model", "autotune"))
    for name in ("generate", "bench", "inspect", "demo-model", "autotune"):
        assert run(name, "--help").out.startswith(f"usage: tspec {name}")


@pytest.mark.parametrize("arguments", [[], ["conjure"], ["--quickly"], ["inspect"], ["inspect", "a", "b"]])
def test_no_or_unknown_subcommands_and_arguments_are_wrong_usage(run, arguments):
    run(*arguments).assert_is_refused()


@pytest.mark.parametrize("error", [MemoryError(), OSError("disk on fire."), MemoryError("no room.")])
def test_a_failure_of_the_machine_is_one_sentence(run, raising, error):
    raising(error)
    outcome = run("inspect", "folder")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == f"tspec inspect: {str(error) or 'MemoryError'}\n"


def test_an_error_of_tspec_itself_keeps_its_traceback(run, raising):
    raising(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run("inspect", "folder")


def test_debug_adds_the_traceback_and_changes_no_exit_code(run):
    plain, debug = run("inspect", "folder"), run("inspect", "folder", "--debug")
    usage = run("inspect", "folder", "--debug", "--bucket", "1")
    assert (plain.status, debug.status, usage.status) == (1, 1, 2)
    assert "Traceback" not in plain.err
    assert debug.err.startswith("Traceback") and debug.err.endswith(plain.err)


def test_an_interrupt_is_quiet(run, raising):
    raising(KeyboardInterrupt())
    outcome = run("inspect", "folder")
    assert (outcome.status, outcome.out, outcome.err) == (main.INTERRUPTED, "", "")


def test_an_unknown_log_level_is_wrong_usage(run, monkeypatch):
    monkeypatch.setenv("TSPEC_LOG", "loud")
    run("inspect", "folder").assert_fails(2, "TSPEC_LOG", "'loud'", "WARNING")


def test_the_log_level_comes_from_the_environment(run, raising, monkeypatch):
    levels = []
    monkeypatch.setenv("TSPEC_LOG", "info")
    monkeypatch.setattr(logging, "basicConfig", lambda **options: levels.append(options["level"]))
    raising(OSError("stop."))
    run("inspect", "folder")
    assert levels == ["INFO"]


@pytest.fixture
def decoding(long_folder):
    """A process that has begun to print a text of many seconds."""
    options = ("--max-tokens", 16000, "--ignore-eos", "--prompt", "abc")
    with start("generate", long_folder, *options) as process:
        try:
            assert process.stdout.read(20)
            yield process
        finally:
            process.kill()


def test_ctrl_c_in_the_middle_of_a_text_ends_it_without_a_traceback(decoding):
    decoding.send_signal(signal.SIGINT)
    _, err = decoding.communicate(timeout=60)
    assert (decoding.returncode, err) == (130, b"")


def test_a_reader_that_goes_away_ends_the_text_without_a_traceback(decoding):
    decoding.stdout.close()
    assert (decoding.wait(timeout=60), decoding.stderr.read()) == (1, b"")


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full"])
def test_output_that_cannot_be_written_is_one_sentence(tiny_folder, redirection):
    line = f'exec "$@" {redirection}'
    command = ["sh", "-c", line, "sh", *PROGRAM, "inspect", str(tiny_folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert re.fullmatch(r"tspec inspect: .*(closed|No space left).*\n", result.stderr)
