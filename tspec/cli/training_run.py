"""What `train-eagle` and `train-draft` share: options, bars while a run goes on, and what it says when stopped."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tspec.core.text_files import read_json_lines

if TYPE_CHECKING:
    from tspec.build import Progress as OnProgress
    from tspec.training.train import OnRecord, Record

LINES = 40
"""Lines printed of a run where no bar can be drawn."""


Options = Mapping[str, tuple[str, str]]
"""Options by name: what they mean, and the field of the settings that they set."""

OPTIONS = {
    "tokens": ("tokens that the target answers to train on (default: 1000000)", "num_tokens"),
    "epochs": ("times that each text is seen (default: 4)", "num_epochs"),
    "seed": ("of the order of the texts (default: 0)", "seed"),
}
"""Those of each kind of training."""


def add_options(parser: argparse.ArgumentParser, options: Options) -> None:
    """Declare what is trained from what, and numbers; one that is left out has the default of the settings."""
    parser.add_argument("target", type=Path, help="folder with config.json and safetensors files")
    parser.add_argument("--prompts", type=Path, required=True, help='JSON lines with "prompt"')
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; a stopped one goes on")
    for name, (text, _) in options.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)


def run_training(args: argparse.Namespace, options: Options, kind: Callable[[], tuple[Any, Any]]) -> int:
    """Train, or go on with training, and print the proposer's folder.

    kind   gives the class of the settings and the function that trains; it may load torch, which wrong usage should
           not wait for
    """
    prompts = read_json_lines(args.prompts, "prompt")
    settings, train = kind()
    given = {field: getattr(args, name) for name, (_, field) in options.items()}
    asked = settings(**{field: value for field, value in given.items() if value is not None})
    console = Console(stderr=True)
    try:
        with _bars(console) as (on_progress, on_record):
            folder = train(
                args.target, prompts, args.out, asked, on_progress=on_progress, on_record=on_record
            )
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on from what {args.out} holds")
        raise
    print(folder)
    return 0


@contextmanager
def _bars(console: Console) -> "Iterator[tuple[OnProgress, OnRecord]]":
    """Show what is done and the figures of each update: bars on a terminal, else some lines."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
                if not console.is_terminal:
                    console.print(f"{what}: {done} of {total}", highlight=False)
            bars.update(tasks[what], completed=done, total=total)

        def on_record(record: "Record") -> None:
            on_progress("train", record.update, record.num_updates)
            bars.update(tasks["train"], description=f"train: {_shown(record)}")
            is_due = record.update % max(1, record.num_updates // LINES) == 0
            if record.is_held_out or (is_due and not console.is_terminal):
                place = f"update {record.update} of {record.num_updates}"
                console.print(f"{place}: {_shown(record)}", highlight=False, soft_wrap=True)

        yield on_progress, on_record


def _shown(record: "Record") -> str:
    loss = " ".join(f"{each:.2f}" for each in record.loss)
    acceptance = " ".join(f"{each:.0%}" for each in record.acceptance)
    kept = ", on texts kept from training" if record.is_held_out else ""
    return f"loss {loss}, acceptance {acceptance}, tokens per pass {record.tokens_per_pass:.2f}{kept}"
