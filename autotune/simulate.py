"""`tspec autotune simulate --device h200 --model llama-3-70b`: what speculation would give, without the machine."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from autotune.devices import MACHINES, Machine, find_machine, measured_cpu
from autotune.models import MODELS, find_model
from autotune.predict import Curves, PredictedModel, eagle_head
from tspec.core.checks import need_int
from tspec.core.errors import ConfigError

ROWS = (1, 4, 16, 64, 256)
NODES = (1, 2, 4, 8, 16, 32, 64)
CHANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
CHAINS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15)
CHECKED_NODES = (1, 2, 4, 8, 16, 32)
REPEATS = 9


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = subparsers.add_parser("simulate", help="predict passes and speed-ups on another machine")
    parser.add_argument(
        "--device", required=True, help=f"cpu (this one, measured), {', '.join(MACHINES)}", metavar="NAME"
    )
    parser.add_argument("--gpus", type=int, default=1, help="devices that share each matrix (default: 1)")
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        help=f"folder with config.json, or one of {', '.join(MODELS)}; may be given again",
    )
    parser.add_argument("--context", type=int, default=1024, help="tokens before each root (default: 1024)")
    parser.add_argument(
        "--draft",
        choices=("eagle", "lookup"),
        default="eagle",
        help="what proposes: a head of one layer (default), or something that takes no time",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print a model's passes and speed-ups; of this CPU's, how far measured passes are from predicted ones."""
    need_int("--gpus", args.gpus, low=1, high=1024)
    need_int("--context", args.context, low=0, high=1 << 20)
    machine = _machine(args.device, args.gpus)
    figures = []
    console = Console()
    for name in args.model:
        target = PredictedModel(find_model(name), machine)
        figures.append(_figures(name, target, args.context, args.draft))
        if machine.name == "cpu" and (Path(name) / "config.json").exists():
            figures[-1]["checked"] = check_cpu(Path(name), target)
        if not args.json:
            show(figures[-1], console)
    if args.json:
        print(json.dumps({"machine": _described(machine), "models": figures}))
    return 0


def _machine(name: str, count: int) -> Machine:
    if name != "cpu":
        return find_machine(name, count)
    if count > 1:
        raise ConfigError("--gpus", got=count, need="1 with --device cpu", fix="Leave it out.")
    from autotune.cpu_probe import measure_cpu  # compiles, and takes 512 MiB

    return measured_cpu(*measure_cpu())


def _described(machine: Machine) -> str:
    return (
        f"{machine.count} x {machine.name}: {machine.bandwidth_gb_s:,.1f} GB/s, {machine.peak_tflops:,.3g} TFLOPS, "
        f"{machine.launch_us:.1f} us a launch"
    )


def _figures(name: str, target: PredictedModel, context: int, draft: str) -> dict[str, Any]:
    head = None if draft == "lookup" else PredictedModel(eagle_head(target.config), target.machine)
    curves = Curves(target, head, context)
    plan = target.plan(1, 1, context)
    best = [
        {"rows": rows, "chance": chance, "candidates": found.candidates, "speed_up": found.value}
        for rows in ROWS
        for chance in CHANCES
        for found in [curves.best(rows, chance, CHAINS)]
    ]
    return {
        "model": name,
        "machine": _described(target.machine),
        "context": context,
        "draft": draft,
        "memory_gb": [
            {"rows": rows, "gb": target.memory_gb(rows, context), "of": target.machine.memory_gb}
            for rows in ROWS
        ],
        "launches": len(plan.launches),
        "bytes": sum(each.bytes_moved for each in plan.launches),
        "flops": sum(each.flops for each in plan.launches),
        "pass_us": [
            {"rows": rows, "nodes": nodes, "us": curves.pass_us(rows, nodes)}
            for rows in ROWS
            for nodes in NODES
        ],
        "level_us": [{"rows": rows, "us": curves.draft_us(rows)} for rows in ROWS],
        "best": best,
    }


def show(figures: dict[str, Any], console: Console) -> None:
    """Print the figures of one model."""
    console.print(
        f"[bold]{figures['model']}[/bold] on {figures['machine']}; {figures['context']} tokens of context; a plain "
        f"pass of one sequence: {figures['launches']} launches, {figures['bytes'] / 1e9:.2f} GB, "
        f"{figures['flops'] / 1e9:.2f} Gflop, a device"
    )
    table = Table(
        "sequences", *(str(nodes) for nodes in NODES), title="predicted ms of a pass, by nodes a sequence"
    )
    for place, rows in enumerate(ROWS):
        found = figures["pass_us"][place * len(NODES) : (place + 1) * len(NODES)]
        memory = figures["memory_gb"][place]
        fits = memory["gb"] <= memory["of"]
        table.add_row(
            str(rows) if fits else f"{rows} (needs {memory['gb']:.0f} GB)",
            *(f"{each['us'] / 1e3:.2f}" for each in found),
        )
    console.print(table)
    title = f"best chain by chance of a candidate, and its speed-up; proposer: {figures['draft']}"
    table = Table("sequences", *(f"{chance:.0%}" for chance in CHANCES), title=title)
    for place, rows in enumerate(ROWS):
        found = figures["best"][place * len(CHANCES) : (place + 1) * len(CHANCES)]
        table.add_row(
            str(rows),
            *(
                f"{each['speed_up']:.2f}x ({each['candidates']})" if each["candidates"] else "plain"
                for each in found
            ),
        )
    console.print(table)
    if "checked" in figures:
        console.print(_checked_table(figures["checked"]))


def _checked_table(checked: Sequence[dict[str, float]]) -> Table:
    table = Table("nodes", "predicted ms", "measured ms", "error", title="this CPU, predicted and measured")
    for each in checked:
        table.add_row(
            str(each["nodes"]),
            f"{each['predicted_us'] / 1e3:.2f}",
            f"{each['measured_us'] / 1e3:.2f}",
            f"{each['error']:+.0%}",
        )
    mean = sum(abs(each["error"]) for each in checked) / len(checked)
    table.caption = f"mean error {mean:.0%}"
    return table


def check_cpu(folder: Path, target: PredictedModel) -> list[dict[str, float]]:
    """Time passes of a checkpoint, and put predicted ones beside them. Error: predicted over measured, less 1.

    What the machine sustains is measured anew, before and after: it may be another machine than a moment ago.
    """
    from autotune.cpu_probe import measure_cpu
    from autotune.pass_grid import growth_by_nodes, time_grid
    from tspec.build import BuildOptions, build_engine
    from tspec.core.speculative_config import SpeculativeConfig

    options = BuildOptions(max_model_len=1024, max_num_seqs=1)
    engine = build_engine(folder, SpeculativeConfig("none"), options)
    try:
        before = measure_cpu()
        passes = time_grid(engine.executor, 1, max(CHECKED_NODES), 0, REPEATS)
        read_gb_s, tflops = np.mean([before, measure_cpu()], axis=0).tolist()
    finally:
        engine.close()
    target = PredictedModel(target.config, measured_cpu(read_gb_s, tflops))
    measured = growth_by_nodes(passes, rows=1, context=0)
    found = []
    for nodes in CHECKED_NODES:
        predicted_us, measured_us = target.pass_us(1, nodes, 0), 1e6 * measured[nodes]
        found.append(
            {
                "nodes": nodes,
                "predicted_us": predicted_us,
                "measured_us": measured_us,
                "error": predicted_us / measured_us - 1,
            }
        )
    return found
