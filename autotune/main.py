"""The subcommands of `tspec autotune`. Each is a module with `add_parser(subparsers)` and `run(args)`.

A module of a subcommand is imported with the command line: what is slow to import, it imports when it runs.
"""

import argparse
from types import ModuleType

from autotune import kernels, policy, report, simulate

SUBCOMMANDS: tuple[ModuleType, ...] = (kernels, policy, report, simulate)


def add_subcommands(parser: argparse.ArgumentParser) -> None:
    """Give `parser` all subcommands; each sets `tune`, from arguments to the exit code."""
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    for module in SUBCOMMANDS:
        one = module.add_parser(subparsers)
        one.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
        one.set_defaults(tune=module.run)
