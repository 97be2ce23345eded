"""`tspec autotune kernels CHECKPOINT`: measures launch configurations of each op and shape, and keeps the best ones.

What is found goes to the user's file of tuned configurations, op by op, so that a run that is killed keeps what it
has finished, and the next one goes on from there. Models that are loaded from then on run with it.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from autotune.search import Found, Search
from tspec.core.errors import ConfigError

BUDGET_S = 240.0
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the subcommand."""
    text = (
        "find the fastest launch configurations of a checkpoint's kernels; bits of results stay as they are"
    )
    parser: argparse.ArgumentParser = subparsers.add_parser("kernels", help=text, description=text)
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and safetensors files")
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="SECONDS",
        help="time to measure (default: %(default)s)",
    )
    parser.add_argument("--again", action="store_true", help="measure also what has an entry")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", default="auto", help="auto (the checkpoint's), float32, bfloat16, float16")
    parser.add_argument("--num-threads", type=int, help="threads of a pass (default: one a usable CPU)")
    parser.add_argument("--op", help="this op alone, as linear_add")
    parser.add_argument(
        "--prune-only",
        choices=ARCHITECTURES,
        metavar="ARCH",
        help=f"measure nothing: compile for {', '.join(ARCHITECTURES)}, and list what is discarded and why",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Tune, or prune alone.

    Errors: ConfigError for a budget of nothing, or an op that the model does not have
    """
    if not args.budget > 0:
        raise ConfigError("--budget", got=args.budget, need="seconds above 0", fix="Raise it.")
    if args.prune_only:
        from autotune.prune_report import prune_checkpoint  # loads triton

        prune_checkpoint(args.checkpoint, args.dtype, args.prune_only, args.budget, args.op)
        return 0
    with _open_tuner(args) as tuner:
        rows = list(tune(tuner, args.budget, again=args.again, only=args.op))
        num_left = sum(args.op in (None, op.op) and not tuner.has(op) for op in tuner.ops)
    _show(rows)
    if num_left:
        print(f"The budget was over before {num_left} ops were sure; run it again for them.")
    return 0


def _open_tuner(args: argparse.Namespace) -> Any:
    """What measures, with its store: see `autotune/cpu_tuner.py`."""
    if args.device == "cuda":
        from autotune.cuda_tuner import CudaTuner

        return CudaTuner(args.checkpoint, args.dtype)
    from autotune.cpu_tuner import CpuTuner

    return CpuTuner(args.checkpoint, args.num_threads, args.dtype)


def tune(
    tuner: Any, budget_s: float, *, again: bool = False, only: str | None = None
) -> Iterator[tuple[str, Found[Any] | None]]:
    """Each op, and what was found, stored if it is sure; None where the store had it. The ops left share the budget.

    again   measure also what the store has
    only    this op alone
    Errors  ConfigError for an op that the model does not have
    """
    ops = [op for op in tuner.ops if only in (None, op.op)]
    if not ops:
        names = ", ".join(sorted({op.op for op in tuner.ops}))
        raise ConfigError("--op", got=only, need=f"one of {names}", fix="Name one of them.")
    end = time.monotonic() + budget_s
    with _bar() as bar:
        task = bar.add_task("tune", total=len(ops))
        for number, op in enumerate(ops):
            bar.update(task, description=str(op), completed=number)
            if not again and tuner.has(op):  # looked up now: another process may have finished it
                yield str(op), None
                continue
            share_s = (end - time.monotonic()) / (len(ops) - number)
            if share_s <= 0:
                break
            search: Search[Any] = Search(partial(tuner.measure, op), time.monotonic, share_s)
            found = search.run(tuner.space(op), tuner.default(op))
            if found.is_sure:
                tuner.put(op, found.config)
            yield str(op), found
        bar.update(task, completed=len(ops))


def _bar() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _show(rows: Sequence[tuple[str, Found[Any] | None]]) -> None:
    table = Table("op", "time, over the default's", "measured", "configuration")
    for name, found in rows:
        if found is None:
            table.add_row(name, "", "", "stored")
            continue
        share = f"{found.num_measured} of {found.num_in_space}"
        table.add_row(name, f"{found.time_ratio:.2f}", share, _numbers(found))
    Console().print(table)


def _numbers(found: Found[Any]) -> str:
    numbers = ", ".join(
        f"{name}={number}" for name, number in asdict(found.config).items() if number is not None
    )
    if not found.is_sure:
        return "not sure yet"
    return "the default" if found.time_ratio == 1.0 else numbers
