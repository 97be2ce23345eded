"""Fixtures of the command line's tests."""

from support.command_line import run

__all__ = ["run"]
