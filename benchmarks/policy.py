"""What a policy promises and what comes: predicted and measured speed-up of each method on questions that the policy
was not made from, and its choice against chains of five candidates, by category of Spec-Bench.

The policy is made from the first questions of each category, and tried on those behind them; every question is decoded
plainly and by each method side by side.

Run: python -m benchmarks.policy [CHECKPOINT] [--proposer FOLDER]... [--per-category 4] [--policy FILE] [--json FILE]
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autotune.policy_run import Job, make_policy
from benchmarks.machine import machine_line
from benchmarks.prompts import Question, read_questions
from benchmarks.side_by_side import Timed, decode_side_by_side
from tspec import LLM, SamplingParams
from tspec.build import BuildOptions, Progress
from tspec.build_draft import method_of
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.checkpoint.policy_file import read_policy
from tspec.core.policy import Policy
from tspec.core.speculative_config import SpeculativeConfig
from tspec.progress import progress_bar

FIXED, PLAIN = 5, "plain"
MAX_MODEL_LEN = 4096
Seconds = dict[str, dict[str, float]]


def parts(per_category: int) -> tuple[list[str], list[Question]]:
    """Prompts to make a policy from, and questions to try it on: up to as many of each category behind them."""
    questions = read_questions(2 * per_category)
    by_category: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        by_category[question.category].append(question)
    tuned = [each.prompt for group in by_category.values() for each in group[:per_category]]
    return tuned, [each for group in by_category.values() for each in group[per_category:]]


def configurations(proposers: Sequence[Path]) -> dict[str, tuple[SpeculativeConfig, bool]]:
    """Each way of decoding: its configuration, and whether it goes by the policy."""
    found = {
        f"ngram, {FIXED}": (SpeculativeConfig("ngram", num_speculative_tokens=FIXED), False),
        "ngram": (SpeculativeConfig("ngram"), True),
        "suffix": (SpeculativeConfig("suffix"), True),
        "auto": (SpeculativeConfig("auto"), True),
    }
    for proposer in proposers:
        method = method_of(proposer)
        fixed = SpeculativeConfig(method, model=proposer, num_speculative_tokens=FIXED)
        found[f"{method}, {FIXED}"] = fixed, False
        found[method] = SpeculativeConfig(method, model=proposer), True
        found[f"auto with {method}"] = SpeculativeConfig("auto", model=proposer), True
    return found


def measure(
    folder: Path,
    file: Path,
    ways: Mapping[str, tuple[SpeculativeConfig, bool]],
    questions: Sequence[Question],
    warm_up: str,
    max_tokens: int,
    on_progress: Progress,
) -> tuple[Seconds, int]:
    """Seconds of decoding by category and way, "plain" among them, all side by side; and how many texts are not plain
    decoding's.

    warm_up   a prompt that is none of the questions: engines bind what is bound on first use, and learn from texts
    """
    seconds: Seconds = defaultdict(lambda: defaultdict(float))
    num_differing, params = 0, SamplingParams(max_tokens=max_tokens)
    options = {"max_model_len": MAX_MODEL_LEN}
    with ExitStack() as stack:
        engines = {PLAIN: stack.enter_context(LLM(folder, speculative_config={"method": "none"}, **options))}
        for name, (config, uses_policy) in ways.items():
            policy = file if uses_policy else None
            llm = LLM(folder, speculative_config=config, policy=policy, **options)
            engines[name] = stack.enter_context(llm)

        def decode(text: str) -> dict[str, Timed]:
            prompt = engines[PLAIN].encode_chat([{"role": "user", "content": text}])
            return decode_side_by_side(engines, prompt, params)

        decode(warm_up)
        for number, question in enumerate(questions, start=1):
            timed = decode(question.prompt)
            on_progress("questions", number, len(questions))
            for name, each in timed.items():
                seconds[question.category][name] += each.decode_s
                num_differing += each.result.token_ids != timed[PLAIN].result.token_ids
    return {category: dict(row) for category, row in seconds.items()}, num_differing


def show(seconds: Seconds, policy: Policy, ways: Sequence[str], console: Console) -> None:
    """Print what was promised and what came, then all ways by category."""
    table = Table(
        "method", "predicted", "measured", "off by", title="on questions that the policy has not seen"
    )
    totals = {name: sum(row[name] for row in seconds.values()) for name in (PLAIN, *ways)}
    for name, each in policy.methods.items():
        measured = totals[PLAIN] / totals[name]
        off = f"{each.predicted_speed_up / measured - 1:+.0%}"
        table.add_row(name, f"{each.predicted_speed_up:.2f}x", f"{measured:.2f}x", off)
    console.print(table)
    table = Table(
        "category", *ways, title=f"speed-up; {FIXED}: chains of so many candidates, else by the policy"
    )
    for category, row in [*seconds.items(), ("all", totals)]:
        table.add_row(category, *(f"{row[PLAIN] / row[name]:.2f}x" for name in ways))
    console.print(table)


def main() -> None:
    """Make a policy or read one, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument(
        "--proposer", type=Path, action="append", default=[], help="draft model or head; may be given again"
    )
    parser.add_argument(
        "--per-category", type=int, default=4, help="questions to tune on, and as many to try"
    )
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--policy", type=Path, help="a policy of this machine; else one is made")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    console, folder = Console(), args.checkpoint or ensure_demo_model()
    console.print(machine_line())
    tuned, questions = parts(args.per_category)
    models = [SpeculativeConfig(method_of(each), model=each) for each in args.proposer]
    options, ways = BuildOptions(max_model_len=MAX_MODEL_LEN), configurations(args.proposer)
    with tempfile.TemporaryDirectory() as temporary, progress_bar() as on_progress:
        file = args.policy or Path(temporary) / "policy.json"
        job = Job(folder, models, tuned, args.max_tokens, options, on_progress)
        policy = read_policy(file) if args.policy else make_policy(job, file)
        seconds, num_differing = measure(
            folder, file, ways, questions, tuned[0], args.max_tokens, on_progress
        )
    show(seconds, policy, list(ways), console)
    console.print(f"texts that are not plain decoding's: {num_differing}")
    if args.json:
        predicted = {name: each.predicted_speed_up for name, each in policy.methods.items()}
        record = {"machine": machine_line(), "predicted": predicted, "seconds": seconds}
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
