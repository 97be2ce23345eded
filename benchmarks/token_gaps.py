"""How long running requests wait for their next token while another one's prompt is prefilled.

Some requests decode; then one with a long prompt comes. Printed: the usual gap between tokens, the gaps during the
prefill, and the time to the newcomer's first token, beside that of the same prompt alone.

Run: python -m benchmarks.token_gaps [CHECKPOINT] [--json FILE]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine_line
from tspec import LLM, SamplingParams
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.runtime.loop import Engine

NUM_DECODING = (16, 1)
PROMPT_TOKENS = 1500
USUAL_STEPS = 100
"""About as many as the prefill takes: the worst of more steps is worse."""


def measure(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """By the number of requests that decode: medians over rounds of gaps in ms, of their ratios, and of times in s."""
    figures: dict[str, dict[str, float]] = {}
    with LLM(folder, max_model_len=4096, max_num_seqs=max(NUM_DECODING) + 1) as llm:
        engine = llm._engine.opened()
        random = np.random.default_rng(0)
        for num_decoding in NUM_DECODING:
            _one_round(engine, num_decoding, random)  # binds plans
            rows = [_one_round(engine, num_decoding, random) for _ in range(rounds)]
            figures[f"{num_decoding} decoding"] = {
                name: float(np.median([row[name] for row in rows])) for name in rows[0]
            }
    return figures


def _one_round(engine: Engine, num_decoding: int, random: np.random.Generator) -> dict[str, float]:
    vocab = engine.config.vocab_size
    prompt = random.integers(0, vocab, PROMPT_TOKENS).tolist()
    forever = SamplingParams(max_tokens=2000, ignore_eos=True)
    decoding = [engine.add(random.integers(0, vocab, 8).tolist(), forever) for _ in range(num_decoding)]
    while any(each.num_output < 2 for each in decoding):
        engine.step()
    usual = [_step_ms(engine) for _ in range(USUAL_STEPS)]
    newcomer = engine.add(prompt, SamplingParams(max_tokens=1))
    beside: list[float] = []
    while newcomer.finish_reason is None:
        beside.append(_step_ms(engine))
    for each in decoding:
        engine.abort(each)
    alone: list[float] = []
    single = engine.add([*prompt[1:], prompt[0]], SamplingParams(max_tokens=1))
    while single.finish_reason is None:
        alone.append(_step_ms(engine))
    return {
        "usual gap, median, ms": float(np.median(usual)),
        "usual gap, worst, ms": max(usual),
        "gap beside a prefill, median, ms": float(np.median(beside)),
        "gap beside a prefill, worst, ms": max(beside),
        "median beside : usual median": float(np.median(beside) / np.median(usual)),
        "worst beside : usual median": float(max(beside) / np.median(usual)),
        "worst beside : usual worst": max(beside) / max(usual),
        "first token beside, s": sum(beside) / 1e3,
        "first token alone, s": sum(alone) / 1e3,
    }


def _step_ms(engine: Engine) -> float:
    start = time.perf_counter()
    engine.step()
    return 1e3 * (time.perf_counter() - start)


def show(figures: dict[str, dict[str, float]], console: Console) -> None:
    """Print the figures of `measure`."""
    table = Table("medians of the rounds", *figures)
    for name in next(iter(figures.values())):
        table.add_row(name, *(f"{row[name]:.2f}" for row in figures.values()))
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    console = Console()
    console.print(machine_line())
    figures = measure(args.checkpoint or ensure_demo_model(), args.rounds)
    show(figures, console)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine_line(), "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
