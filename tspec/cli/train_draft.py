"""`tspec train-draft TARGET`: a draft model out of a few of the target's layers, from prompts alone."""

import argparse
from typing import Any

from tspec.cli.training_run import OPTIONS, add_options, run_training

_OPTIONS = OPTIONS | {"layers": ("layers that it keeps (default: an eighth of the target's)", "num_layers")}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = subparsers.add_parser("train-draft", help="train a small draft model for a target")
    add_options(parser, _OPTIONS)
    return parser


def run(args: argparse.Namespace) -> int:
    """Train, or go on with training, and print the draft model's folder."""
    return run_training(args, _OPTIONS, _kind)


def _kind() -> tuple[Any, Any]:
    from tspec.training.draft import train_draft
    from tspec.training.settings import DraftSettings

    return DraftSettings, train_draft
