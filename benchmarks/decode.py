"""All decoding figures of one machine in one run: a table for people, JSON for the record.

Run: python -m benchmarks.decode [CHECKPOINT] [--json FILE]
"""

import argparse
import json
from pathlib import Path

from rich.console import Console

from benchmarks import against_transformers, passes, speculation, startup
from benchmarks.machine import cpu_name, machine_line
from benchmarks.prompts import read_questions
from tspec.checkpoint.demo_model import ensure_demo_model


def main() -> None:
    """Measure everything, one part after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=256)
    args = parser.parse_args()
    folder, console = args.checkpoint or ensure_demo_model(), Console()
    console.print(machine_line())
    record: dict[str, object] = {"machine": cpu_name(), "model": folder.name}
    record["passes"] = pass_figures = passes.measure(folder, rounds=4 * args.rounds + 1)
    passes.show(pass_figures, console)
    record["against_transformers"] = speeds = against_transformers.measure(folder, args.rounds)
    against_transformers.show(speeds, console)
    record["speculation"] = figures = speculation.measure(
        folder, read_questions(args.per_category), args.max_tokens
    )
    speculation.show(figures, console)
    record["startup_s"] = start_figures = startup.measure(folder, rounds=3)
    startup.show(start_figures, console)
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
