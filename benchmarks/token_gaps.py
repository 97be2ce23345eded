"""How long running requests wait for their next token while another one's prompt is prefilled.

Sixteen requests decode; then one with a long prompt comes. Printed: the usual gap between tokens, the longest one
during the prefill, and the time to the newcomer's first token, beside that of the same prompt alone.

Run: python -m benchmarks.token_gaps [CHECKPOINT]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.machine import machine_line
from tspec import LLM, SamplingParams
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.runtime.loop import Engine

NUM_DECODING = 16
PROMPT_TOKENS = 1500
USUAL_STEPS = 30


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Medians over rounds of gaps in ms and of times to the first token in s."""
    rows = []
    with LLM(folder, max_model_len=4096, max_num_seqs=NUM_DECODING + 1) as llm:
        engine = llm._engine.opened()
        random = np.random.default_rng(0)
        for _ in range(rounds + 1):  # the first one binds plans
            prompt = random.integers(0, engine.config.vocab_size, PROMPT_TOKENS).tolist()
            rows.append(_one_round(engine, prompt, random))
    return {name: float(np.median([row[name] for row in rows[1:]])) for name in rows[0]}


def _one_round(engine: Engine, prompt: list[int], random: np.random.Generator) -> dict[str, float]:
    forever = SamplingParams(max_tokens=2000, ignore_eos=True)
    vocab = engine.config.vocab_size
    decoding = [engine.add(random.integers(0, vocab, 8).tolist(), forever) for _ in range(NUM_DECODING)]
    while any(each.num_output < 2 for each in decoding):
        engine.step()
    usual = [_step_s(engine) for _ in range(USUAL_STEPS)]
    newcomer = engine.add(prompt, SamplingParams(max_tokens=1))
    beside, start = [], time.perf_counter()
    while newcomer.finish_reason is None:
        beside.append(_step_s(engine))
    first_token_s = time.perf_counter() - start
    for each in decoding:
        engine.abort(each)
    start = time.perf_counter()
    alone = engine.add([*prompt[1:], prompt[0]], SamplingParams(max_tokens=1))
    while alone.finish_reason is None:
        engine.step()
    return {
        "usual_gap_ms": 1e3 * float(np.median(usual)),
        "longest_usual_gap_ms": 1e3 * max(usual),
        "median_gap_beside_ms": 1e3 * float(np.median(beside)),
        "longest_gap_beside_ms": 1e3 * max(beside),
        "first_token_beside_s": first_token_s,
        "first_token_alone_s": time.perf_counter() - start,
    }


def _step_s(engine: Engine) -> float:
    start = time.perf_counter()
    engine.step()
    return time.perf_counter() - start


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
    for name, value in figures.items():
        console.print(f"{name:<24} {value:8.2f}")
    for which in ("median", "longest"):
        usual = figures["usual_gap_ms" if which == "median" else "longest_usual_gap_ms"]
        console.print(
            f"{which} gap beside a prefill: {figures[f'{which}_gap_beside_ms'] / usual:.2f}x the usual one"
        )
    if args.json:
        args.json.write_text(json.dumps({"machine": machine_line(), **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
