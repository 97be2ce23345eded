"""Every way to speculate beside plain decoding, in one interleaved run, by category of Spec-Bench.

Run: python -m benchmarks.methods [CHECKPOINT] [--head FOLDER] [--draft FOLDER] [--questions 80] [--max-tokens 128]
"""

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.machine import machine_line
from benchmarks.prompts import Question, first_questions
from benchmarks.side_by_side import Timed, decode_side_by_side
from benchmarks.speculation import geometric_mean
from tspec import LLM, SamplingParams
from tspec.checkpoint.demo_model import ensure_demo_model

CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Categories of Spec-Bench that are MT-Bench's."""
PLAIN = "plain"


def methods(head: Path | None, draft: Path | None) -> dict[str, dict[str, Any]]:
    """What LLM is asked for, by the name of the method. Union and auto take the head, where there is one."""
    found: dict[str, dict[str, Any]] = {
        PLAIN: {"method": "none"},
        "n-gram": {"method": "ngram"},
        "suffix": {"method": "suffix"},
    }
    if head is not None:
        found["EAGLE chain"] = {"method": "eagle3", "model": head}
        found["EAGLE tree"] = {"method": "eagle3", "model": head, "draft_top_k": 4}
    if draft is not None:
        found["draft model"] = {"method": "draft_model", "model": draft}
    of_model: dict[str, Any] = {}
    if head is not None or draft is not None:
        of_model = {"model": head or draft, "draft_top_k": 4 if head else 1}
    return found | {"union": {"method": "union", **of_model}, "auto": {"method": "auto", **of_model}}


def measure(
    folder: Path,
    configs: Mapping[str, Mapping[str, Any]],
    num_questions: int,
    max_tokens: int,
    on_question: Callable[[Question], None],
) -> dict[str, Any]:
    """Decode each question with all methods side by side, greedily. Decoding time alone counts, prefill is left out.

    Each method has an engine of its own, and so its own memory of what was said.
    """
    results: dict[str, list[Timed]] = {name: [] for name in configs}
    questions = first_questions(num_questions)
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(
                LLM(folder, max_model_len=4096, max_num_seqs=1, speculative_config=dict(config))
            )
            for name, config in configs.items()
        }
        for question in questions:
            prompt = engines[PLAIN].encode_chat([{"role": "user", "content": question.prompt}])
            timed = decode_side_by_side(engines, prompt, SamplingParams(max_tokens=max_tokens))
            for name, each in timed.items():
                results[name].append(each)
            on_question(question)
    categories = [question.category for question in questions]
    return {
        "num_questions": len(questions),
        "max_tokens": max_tokens,
        "methods": {
            name: _method_figures(categories, results[PLAIN], each) for name, each in results.items()
        },
    }


def _method_figures(categories: list[str], plain: list[Timed], results: list[Timed]) -> dict[str, Any]:
    rows = list(zip(categories, plain, results, strict=True))
    by_category = {
        name: _summary([(one, other) for category, one, other in rows if category == name])
        for name in dict.fromkeys(categories)
    }
    chat = [(one, other) for category, one, other in rows if category in CHAT]
    return {
        "by_category": by_category,
        "chat": _summary(chat) if chat else None,
        "all": _summary([(one, other) for _, one, other in rows]),
        "geometric_mean": geometric_mean(row["speed_up"] for row in by_category.values()),
        "num_identical": sum(one.result.token_ids == other.result.token_ids for _, one, other in rows),
    }


def _summary(pairs: list[tuple[Timed, Timed]]) -> dict[str, float]:
    tokens = sum(other.num_decoded for _, other in pairs)
    plain_s, fast_s = (sum(pair[way].decode_s for pair in pairs) for way in (0, 1))
    return {
        "tokens": tokens,
        "tokens_per_pass": tokens / max(1, sum(other.result.stats.num_passes for _, other in pairs)),
        "speed_up": plain_s / fast_s if fast_s else 0.0,
    }


def show(figures: dict[str, Any], console: Console) -> None:
    """Print two tables: tokens per pass, and speed-up over plain decoding, by category and method."""
    by_method = figures["methods"]
    categories = list(by_method[PLAIN]["by_category"])
    for key, form, title in (
        ("tokens_per_pass", "{:.2f}", "tokens per pass"),
        ("speed_up", "{:.2f}x", "speed-up"),
    ):
        table = Table("category", *by_method, title=title)
        for name in categories:
            table.add_row(name, *(form.format(each["by_category"][name][key]) for each in by_method.values()))
        if by_method[PLAIN]["chat"]:
            table.add_row("chat", *(form.format(each["chat"][key]) for each in by_method.values()))
        table.add_row("all", *(form.format(each["all"][key]) for each in by_method.values()))
        if key == "speed_up":
            means = (form.format(each["geometric_mean"]) for each in by_method.values())
            table.add_row("geometric mean", *means)
        console.print(table)
    counts = {each["num_identical"] for each in by_method.values()}
    console.print(f"texts the same as plain, at least: {min(counts)} of {figures['num_questions']}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--head", type=Path, help="an EAGLE-3 head")
    parser.add_argument("--draft", type=Path, help="a draft model")
    parser.add_argument("--questions", type=int, default=80)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    console = Console()
    console.print(machine_line())
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("questions", total=args.questions)

        def on_question(question: Question) -> None:
            bar.advance(task)
            if not console.is_terminal:
                console.print(f"{bar.tasks[0].completed:.0f} of {args.questions}: {question.category}")

        configs = methods(args.head, args.draft)
        folder = args.checkpoint or ensure_demo_model()
        figures = measure(folder, configs, args.questions, args.max_tokens, on_question)
    show(figures, console)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine_line(), **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
