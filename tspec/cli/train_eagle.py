"""`tspec train-eagle TARGET`: an EAGLE-3 head for a target that has none, from prompts alone."""

import argparse
from typing import Any

from tspec.cli.training_run import OPTIONS, add_options, run_training

_OPTIONS = OPTIONS | {
    "vocab": ("tokens that the head can say, the most frequent ones (default: 4096)", "vocab_size"),
    "mlp": ("width of the head's MLP (default: the target's)", "intermediate_size"),
    "steps": ("candidates in a row that the head is trained for (default: 3)", "num_steps"),
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = subparsers.add_parser("train-eagle", help="train an EAGLE-3 head for a target")
    add_options(parser, _OPTIONS)
    return parser


def run(args: argparse.Namespace) -> int:
    """Train, or go on with training, and print the head's folder."""
    return run_training(args, _OPTIONS, _kind)


def _kind() -> tuple[Any, Any]:
    from tspec.training.eagle import train_eagle
    from tspec.training.settings import TrainSettings

    return TrainSettings, train_eagle
