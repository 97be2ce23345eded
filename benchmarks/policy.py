"""What a policy promises and what comes: predicted and measured speed-up of each method on questions that the policy
was not made from, and its choice against chains of five candidates, by category of Spec-Bench.

The policy is made from the first questions of each category, and tried on those behind them; every question is decoded
plainly and by each method in turn.

Run: python -m benchmarks.policy [CHECKPOINT] [--proposer FOLDER] [--per-category 2] [--policy FILE] [--json FILE]
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autotune.policy_run import Job, make_policy
from autotune.texts import answer, encode
from benchmarks.machine import machine_line
from benchmarks.prompts import Question, read_questions
from tspec.build import BuildOptions
from tspec.build_draft import method_of
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.checkpoint.policy_file import read_policy
from tspec.core.policy import Policy
from tspec.core.speculative_config import SpeculativeConfig
from tspec.requests.text_engine import TextEngine

FIXED = 5
Seconds = dict[str, dict[str, float]]


def parts(per_category: int) -> tuple[list[str], list[Question]]:
    """Prompts to make a policy from, and questions to try it on: as many of each category behind them."""
    questions = read_questions(2 * per_category)
    by_category: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        by_category[question.category].append(question)
    tuned = [each.prompt for group in by_category.values() for each in group[:per_category]]
    return tuned, [each for group in by_category.values() for each in group[per_category:]]


def configurations(proposer: Path | None) -> dict[str, tuple[SpeculativeConfig, bool]]:
    """Each way of decoding: its configuration, and whether it goes by the policy."""
    found = {
        f"ngram, {FIXED}": (SpeculativeConfig("ngram", num_speculative_tokens=FIXED), False),
        "ngram": (SpeculativeConfig("ngram"), True),
        "suffix": (SpeculativeConfig("suffix"), True),
        "auto": (SpeculativeConfig("auto"), True),
    }
    if proposer is not None:
        method = method_of(proposer)
        fixed = SpeculativeConfig(method, model=proposer, num_speculative_tokens=FIXED)
        found[f"{method}, {FIXED}"] = fixed, False
        found[method] = SpeculativeConfig(method, model=proposer), True
        found["auto with it"] = SpeculativeConfig("auto", model=proposer), True
    return found


def measure(
    job: Job, file: Path, ways: Mapping[str, tuple[SpeculativeConfig, bool]], questions: Sequence[Question]
) -> tuple[Seconds, dict[str, int]]:
    """Seconds of decoding by category and way, "plain" among them; all ways of a question run in turn. And how many
    texts of each way are not plain decoding's.
    """
    engines: dict[str, TextEngine] = {}
    differing = dict.fromkeys(ways, 0)
    seconds: Seconds = defaultdict(lambda: defaultdict(float))
    try:
        for name, (config, uses_policy) in ways.items():
            engines[name] = job.open(config, file if uses_policy else None)
        first = next(iter(engines.values()))
        prompts = [encode(first, question.prompt) for question in questions]
        for engine in engines.values():
            answer(engine, prompts[0], 16, speculates=True)  # what is bound on first use
        for question, prompt in zip(questions, prompts, strict=True):
            found = seconds[question.category]
            plain = answer(first, prompt, job.max_tokens, speculates=False)
            found["plain"] += plain.decode_s
            for name, engine in engines.items():
                fast = answer(engine, prompt, job.max_tokens, speculates=True)
                found[name] += fast.decode_s
                differing[name] += fast.text.output != plain.text.output
    finally:
        for engine in engines.values():
            engine.close()
    return {category: dict(row) for category, row in seconds.items()}, differing


def show(seconds: Seconds, policy: Policy, ways: Sequence[str], console: Console) -> None:
    """Print what was promised and what came, then all ways by category."""
    table = Table(
        "method", "predicted", "measured", "off by", title="on questions that the policy has not seen"
    )
    totals = {name: sum(row[name] for row in seconds.values()) for name in ("plain", *ways)}
    for name, each in policy.methods.items():
        measured = totals["plain"] / totals[name]
        off = f"{each.predicted_speed_up / measured - 1:+.0%}"
        table.add_row(name, f"{each.predicted_speed_up:.2f}x", f"{measured:.2f}x", off)
    console.print(table)
    table = Table(
        "category", *ways, title=f"speed-up; {FIXED}: chains of so many candidates, else by the policy"
    )
    for category, row in [*seconds.items(), ("all", totals)]:
        table.add_row(category, *(f"{row['plain'] / row[name]:.2f}x" for name in ways))
    console.print(table)


def main() -> None:
    """Make a policy or read one, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--proposer", type=Path, help="draft model or head")
    parser.add_argument(
        "--per-category", type=int, default=2, help="questions to tune on, and as many to try"
    )
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--policy", type=Path, help="a policy of this machine; else one is made")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    console, folder = Console(), args.checkpoint or ensure_demo_model()
    console.print(machine_line())
    tuned, questions = parts(args.per_category)
    models = (
        [] if args.proposer is None else [SpeculativeConfig(method_of(args.proposer), model=args.proposer)]
    )
    options = BuildOptions(max_model_len=4096)
    job = Job(folder, models, tuned, args.max_tokens, options, lambda what, done, total: None)
    with tempfile.TemporaryDirectory() as temporary:
        file = args.policy or Path(temporary) / "policy.json"
        policy = read_policy(file) if args.policy else make_policy(job, file)
        ways = configurations(args.proposer)
        seconds, differing = measure(job, file, ways, questions)
    show(seconds, policy, list(ways), console)
    console.print(f"texts that are not plain decoding's: {sum(differing.values())}")
    if args.json:
        predicted = {name: each.predicted_speed_up for name, each in policy.methods.items()}
        record = {"machine": machine_line(), "predicted": predicted, "seconds": seconds}
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
