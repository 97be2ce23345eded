"""Tokens a second of many requests at once: this engine plain and with speculation, and transformers' batches.

Each batch size decodes the same Spec-Bench prompts, in groups of that size for transformers (padded on the left) and as
so many running requests here. All ways run in turn, so that a noisy machine treats them alike. Where texts are short,
prompts take most of the time: hence each figure is given for decoding alone, too, without the time that the same way
takes for texts of one token, and without these tokens.

Run: python -m benchmarks.batches [CHECKPOINT] [--json FILE]
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from benchmarks.machine import machine_line
from benchmarks.prompts import read_questions
from tspec import LLM, SamplingParams
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.kernels.cpu.host import usable_cpus

SIZES = (1, 4, 16, 64)
MOST_PROMPT_TOKENS = 700
"""Longer prompts are left out: with padded batches they would time padding."""


def measure(
    folder: Path, num_prompts: int, max_tokens: int, with_transformers: bool = True
) -> dict[str, list[float]]:
    """Tokens a second by way, one figure a batch size: with the prompts as part of the time, and of decoding alone."""
    torch.set_num_threads(usable_cpus())
    figures: dict[str, list[float]] = {}
    with LLM(folder, max_model_len=2048, max_num_seqs=1, speculative_config={"method": "none"}) as single:
        prompts = _short_prompts(single, num_prompts)
    model = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        if with_transformers
        else None
    )
    for size in SIZES:
        # Small batches take long: fewer prompts give the same figure.
        group = prompts[: max(size, min(num_prompts, 4 * size))]
        options = {"max_model_len": 2048, "max_num_seqs": size}
        with LLM(folder, **options) as llm:
            ways: dict[str, Callable[[int], float]] = {
                "plain": partial(_our_s, llm, group, "off"),
                "auto": partial(_our_s, llm, group, "auto"),
            }
            if model is not None:
                ways["transformers float32"] = partial(_their_s, model, group, size)
            for name, seconds in ways.items():
                prompts_s, all_s = seconds(1), seconds(max_tokens)
                figures.setdefault(name, []).append(len(group) * max_tokens / all_s)
                decoding = len(group) * (max_tokens - 1) / (all_s - prompts_s)
                figures.setdefault(f"{name}, decoding alone", []).append(decoding)
    return figures


def _short_prompts(llm: LLM, count: int) -> list[list[int]]:
    prompts = [
        llm.encode_chat([{"role": "user", "content": each.prompt}]) for each in read_questions(per_category=8)
    ]
    short = [each for each in prompts if len(each) <= MOST_PROMPT_TOKENS]
    assert len(short) >= count, len(short)
    return short[:count]


def _our_s(llm: LLM, prompts: Sequence[list[int]], way: str, max_tokens: int) -> float:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, speculative=way)
    llm.generate(prompts[0], SamplingParams(max_tokens=4, ignore_eos=True))
    llm._engine.opened().scheduler.kv.forget()  # each run computes its prompts itself
    start = time.perf_counter()
    llm.generate(prompts, params)
    return time.perf_counter() - start


def _their_s(model: torch.nn.Module, prompts: Sequence[list[int]], size: int, max_tokens: int) -> float:
    start = time.perf_counter()
    for first in range(0, len(prompts), size):
        group = prompts[first : first + size]
        width = max(map(len, group))
        ids = torch.tensor([[0] * (width - len(each)) + each for each in group])
        mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in group])
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return time.perf_counter() - start


def show(figures: dict[str, list[float]], console: Console) -> None:
    """Print the figures of `measure`."""
    table = Table("tokens/s", *(f"batch {size}" for size in SIZES))
    for name, speeds in figures.items():
        table.add_row(name, *(f"{speed:.1f} ({speed / speeds[0]:.1f}x)" for speed in speeds))
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--without-transformers", action="store_true", help="it takes minutes")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    console = Console()
    console.print(machine_line())
    folder = args.checkpoint or ensure_demo_model()
    figures = measure(folder, args.num_prompts, args.max_tokens, not args.without_transformers)
    show(figures, console)
    if args.json:
        args.json.write_text(
            json.dumps({"machine": machine_line(), "sizes": SIZES, "tokens_per_s": figures}, indent=1)
        )


if __name__ == "__main__":
    main()
