"""`tspec demo-model`: puts a small real model on disk and prints its folder."""

import argparse
from pathlib import Path

from tspec.progress import progress_bar


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = subparsers.add_parser("demo-model", help="prepare SmolLM2-135M-Instruct and print its folder")
    parser.add_argument("--cache-dir", type=Path, help="where to keep it (default: the user's cache folder)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Convert the model unless it is there."""
    from tspec.checkpoint.demo_model import ensure_demo_model

    with progress_bar() as on_progress:
        folder = ensure_demo_model(args.cache_dir, on_progress)
    print(folder)
    return 0
