"""Speculation against plain decoding, by category of Spec-Bench; and whether every text is the same.

Run: python -m benchmarks.speculation [CHECKPOINT] [--per-category 2] [--max-tokens 256] [--temperature 0]
         [--categories NAME ...] [--seeds 1] [--speculative-config '{"method": "ngram"}']
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine_line
from benchmarks.prompts import Question, read_questions
from benchmarks.side_by_side import Timed, decode_side_by_side
from tspec import LLM, SamplingParams
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.cli.stats_tables import sources_table
from tspec.core.proposer import SourceTally

Pair = tuple[Question, Timed, Timed]


def measure(
    folder: Path,
    questions: Sequence[Question],
    max_tokens: int,
    speculative_config: dict[str, object] | None = None,
    on_result: Callable[[Pair], None] = lambda pair: None,
    temperature: float = 0.0,
    num_seeds: int = 1,
) -> dict[str, object]:
    """Decode each question both ways side by side, by default with method auto. Speed-up is over decoding time, prefill
    left out.

    num_seeds   texts of a question: each seed has an engine of its own, that has seen no other answer
    """
    pairs: list[Pair] = []
    sources: dict[str, list[SourceTally]] = {}
    with LLM(folder, max_model_len=4096, speculative_config={"method": "none"}) as plain:
        for seed in range(1, num_seeds + 1):
            params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
            with LLM(folder, max_model_len=4096, speculative_config=speculative_config) as fast:
                for question in questions:
                    prompt = plain.encode_chat([{"role": "user", "content": question.prompt}])
                    timed = decode_side_by_side({"plain": plain, "fast": fast}, prompt, params)
                    pairs.append((question, timed["plain"], timed["fast"]))
                    on_result(pairs[-1])
                for name, tally in fast.metrics().sources.items():
                    sources.setdefault(name, []).append(tally)
    categories = dict.fromkeys(question.category for question, _, _ in pairs)
    by_category = {
        name: _summary([pair for pair in pairs if pair[0].category == name]) for name in categories
    }
    return {
        "num_prompts": len(pairs),
        "num_identical": sum(plain.result.token_ids == fast.result.token_ids for _, plain, fast in pairs),
        "all": _summary(pairs),
        "by_category": by_category,
        "geometric_mean": geometric_mean(row["speed_up"] for row in by_category.values()),
        "sources": {name: _sum(tallies) for name, tallies in sources.items()},
    }


def _sum(tallies: Iterable[SourceTally]) -> dict[str, float]:
    rows = [asdict(tally) for tally in tallies]
    return {name: sum(row[name] for row in rows) for name in rows[0]}


def geometric_mean(values: Iterable[float]) -> float:
    """The mean of ratios."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def _summary(pairs: list[Pair]) -> dict[str, float]:
    fast = [other.result.stats for _, _, other in pairs]
    tokens = sum(plain.num_decoded for _, plain, _ in pairs)
    passes = sum(stats.num_passes for stats in fast)
    plain_s, fast_s = (sum(pair[way].decode_s for pair in pairs) for way in (1, 2))
    candidates = sum(stats.num_candidates for stats in fast)
    return {
        "tokens": tokens,
        "plain_tokens_per_second": tokens / plain_s if plain_s else 0.0,
        "tokens_per_pass": tokens / passes if passes else 0.0,
        "candidates_per_pass": candidates / passes if passes else 0.0,
        "acceptance_rate": sum(stats.num_accepted for stats in fast) / candidates if candidates else 0.0,
        "speed_up": plain_s / fast_s if fast_s else 0.0,
    }


def show(figures: dict, console: Console) -> None:
    """Print the figures of `measure`."""
    table = Table("category", "tokens", "plain tokens/s", "tokens per pass", "accepted", "speed-up")
    for name, row in [*figures["by_category"].items(), ("all", figures["all"])]:
        table.add_row(
            name,
            str(row["tokens"]),
            f"{row['plain_tokens_per_second']:.1f}",
            f"{row['tokens_per_pass']:.2f}",
            f"{row['acceptance_rate']:.0%}",
            f"{row['speed_up']:.2f}x",
        )
    console.print(table)
    console.print(f"geometric mean of categories: {figures['geometric_mean']:.2f}x")
    if figures["sources"]:
        console.print(sources_table({name: SourceTally(**row) for name, row in figures["sources"].items()}))
    console.print(f"identical texts: {figures['num_identical']} of {figures['num_prompts']}")


def main() -> None:
    """Measure and print; writes the token ids of every text with --record, for benchmarks/ngram_occurrence.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--categories", nargs="+", metavar="NAME", help="these alone")
    parser.add_argument("--seeds", type=int, default=1, help="texts of each question, where they are sampled")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--record", type=Path, help="JSON lines file for the texts")
    parser.add_argument("--speculative-config", type=json.loads, help="JSON, as LLM takes it")
    run(parser.parse_args())


def run(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    console, lines = Console(), []

    def on_result(pair: Pair) -> None:
        question, plain, fast = pair
        per_pass = fast.result.stats.tokens_per_pass or 0
        console.print(f"{question.category}: {len(plain.result.token_ids)} tokens, {per_pass:.2f} a pass")
        lines.append(
            json.dumps(
                {
                    "category": question.category,
                    "prompt_ids": plain.result.prompt_token_ids,
                    "output_ids": plain.result.token_ids,
                }
            )
        )

    console.print(machine_line())
    questions = [
        each
        for each in read_questions(args.per_category)
        if args.categories is None or each.category in args.categories
    ]
    figures = measure(
        args.checkpoint or ensure_demo_model(),
        questions,
        args.max_tokens,
        args.speculative_config,
        on_result,
        args.temperature,
        args.seeds,
    )
    show(figures, console)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine_line(), **figures}, indent=1) + "\n")
    if args.record:
        args.record.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
