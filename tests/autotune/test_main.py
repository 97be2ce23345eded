"""The command line of autotune: a subcommand of tspec, and a module that can be run by itself.

Run: pytest tests/autotune/test_main.py
"""

import subprocess
import sys

import pytest
from support.command_line import run

from autotune import main

__all__ = ["run"]


@pytest.fixture
def one_subcommand(monkeypatch):
    """A subcommand that returns what it is given."""

    class Module:
        @staticmethod
        def add_parser(subparsers):
            parser = subparsers.add_parser("echo")
            parser.add_argument("status", type=int)
            return parser

        @staticmethod
        def run(args):
            return args.status

    monkeypatch.setattr(main, "SUBCOMMANDS", (Module,))


def test_a_subcommand_gets_its_arguments_and_gives_the_exit_code(run, one_subcommand):
    assert [run("autotune", "echo", status).status for status in (0, 1)] == [0, 1]
    run("autotune", "echo").assert_is_refused("status")


def test_debug_may_stand_before_and_behind_the_subcommand(run, one_subcommand):
    assert run("autotune", "--debug", "echo", 0).status == run("autotune", "echo", 0, "--debug").status == 0


def test_the_module_runs_the_same_command_line():
    command = [sys.executable, "-m", "autotune", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("usage: tspec autotune")
