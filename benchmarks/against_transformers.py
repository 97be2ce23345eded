"""Plain decoding against transformers' `generate` on the same checkpoint, in bfloat16 and in float32.

Run: python -m benchmarks.against_transformers [CHECKPOINT]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from benchmarks.machine import machine_line
from tspec import LLM, SamplingParams
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.kernels.cpu.host import usable_cpus

PROMPT = "Write a long story about a lighthouse keeper and the ships that pass by."
NUM_TOKENS = 64


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Tokens a second, medians over rounds in which each engine decodes the prompt once."""
    torch.set_num_threads(usable_cpus())
    options = {"max_model_len": 2048, "speculative_config": {"method": "none"}}
    with LLM(folder, **options) as llm, LLM(folder, dtype="float32", **options) as wide:
        prompt = llm.encode_chat([{"role": "user", "content": PROMPT}])
        ways: dict[str, Callable[[], float]] = {
            "tspec bfloat16": lambda: _ours(llm, prompt),
            "tspec float32": lambda: _ours(wide, prompt),
        }
        for dtype in (torch.bfloat16, torch.float32):
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
            ways[f"transformers {str(dtype).split('.')[1]}"] = lambda model=model: _theirs(model, prompt)
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                speeds[name].append(way())
    return {name: float(np.median(each)) for name, each in speeds.items()}


def _ours(llm: LLM, prompt: list[int]) -> float:
    stats = llm.generate(prompt, SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True))[0].stats
    assert stats.tokens_per_second is not None
    return stats.tokens_per_second


def _theirs(model: torch.nn.Module, prompt: list[int]) -> float:
    """Decoding alone: the time of NUM_TOKENS tokens less that of one, which is prefill."""
    ids = torch.tensor([prompt])
    seconds = []
    for count in (1, NUM_TOKENS):
        start = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        seconds.append(time.perf_counter() - start)
    return (NUM_TOKENS - 1) / (seconds[1] - seconds[0])


def show(figures: dict[str, float], console: Console) -> None:
    """Print the figures of `measure`."""
    table = Table("engine", "tokens/s")
    for name, speed in figures.items():
        table.add_row(name, f"{speed:.1f}")
    console.print(table)
    best = max(speed for name, speed in figures.items() if name.startswith("transformers"))
    console.print(
        f"tspec bfloat16 is {figures['tspec bfloat16'] / best:.1f}x the faster of transformers' two"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    console = Console()
    console.print(machine_line())
    show(measure(args.checkpoint or ensure_demo_model(), args.rounds), console)


if __name__ == "__main__":
    main()
