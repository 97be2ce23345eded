"""`tspec autotune SUBCOMMAND …`: hands over to the package `autotune`, beside this one."""

import argparse
from typing import Any


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the subcommand, and those of its own."""
    from autotune.main import add_subcommands  # a top of its own, which may import this package

    text = "measure this machine, and find the fastest exact configuration of a checkpoint"
    parser: argparse.ArgumentParser = subparsers.add_parser("autotune", help=text, description=text)
    add_subcommands(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the subcommand of `autotune` that was asked for."""
    status: int = args.tune(args)
    return status
