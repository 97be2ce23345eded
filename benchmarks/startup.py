"""From the shell to the first token of `tspec generate`: with warm caches, and on a first run that compiles.

Run: python -m benchmarks.startup [CHECKPOINT]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine_line
from tspec.checkpoint.demo_model import ensure_demo_model

PROMPT = "The capital of France is"


def first_byte_s(folder: Path, cache: Path | None) -> float:
    """Seconds until the first byte of text. `cache` is a user cache folder to use instead of the real one."""
    environment = dict(os.environ)
    if cache is not None:
        environment["XDG_CACHE_HOME"] = str(cache)
    command = [sys.executable, "-m", "tspec.cli.main", "generate", str(folder), "--prompt", PROMPT]
    start = time.perf_counter()
    with subprocess.Popen(
        [*command, "--max-tokens", "16"], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    return seconds


def parts_s(folder: Path) -> dict[str, float]:
    """Where a warm start spends its time, each part in a fresh process."""
    code = {
        "import torch": "import torch",
        "import tspec.llm (torch included)": "import tspec.llm",
        "load the model too": f"import tspec.llm; tspec.llm.LLM({str(folder)!r})",
    }
    seconds = {}
    for name, text in code.items():
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", text], check=True)
        seconds[name] = time.perf_counter() - start
    return seconds


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Medians of warm starts, one cold start (no compiled code), and the parts of a warm one."""
    with tempfile.TemporaryDirectory() as cache:
        cold = first_byte_s(folder, Path(cache))
    first_byte_s(folder, None)
    warm = float(np.median([first_byte_s(folder, None) for _ in range(rounds)]))
    return {"first run, compiling": cold, "warm caches": warm, **parts_s(folder)}


def show(figures: dict[str, float], console: Console) -> None:
    """Print the figures of `measure`."""
    table = Table("from the shell to the first token", "seconds")
    for name, seconds in figures.items():
        table.add_row(name, f"{seconds:.1f}")
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    console = Console()
    console.print(machine_line())
    show(measure(args.checkpoint or ensure_demo_model(), args.rounds), console)


if __name__ == "__main__":
    main()
