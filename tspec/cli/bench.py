"""`tspec bench CHECKPOINT`: the same prompts plain and with speculation, whether the texts are the same, and which
was faster. Each prompt runs both ways in turn, so that a noisy machine treats both alike."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tspec.cli import options
from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.core.text_files import read_json_lines
from tspec.progress import progress_bar

if TYPE_CHECKING:
    from tspec.llm import LLM, Result

PROMPTS = (
    "Repeat the following list three times, word for word: apples, oranges, bananas, cherries, grapes, lemons.",
    "Write a Python class Account with methods deposit, withdraw and balance, each with a docstring.",
    "Extract all names and years as a list. Ada Lovelace wrote the first program in 1843. Alan Turing described his "
    "machine in 1936. Grace Hopper wrote the first compiler in 1952. John McCarthy designed Lisp in 1958.",
)
"""What is run when no file is given."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over prompts of one way of decoding."""

    name: str
    num_tokens: int
    num_passes: int
    decode_s: float

    @property
    def tokens_per_second(self) -> float:
        """Decoded tokens a second, the first of each text (which prefill gives) left out."""
        return self.num_tokens / self.decode_s

    @property
    def tokens_per_pass(self) -> float:
        """Decoded tokens a verify pass."""
        return self.num_tokens / self.num_passes


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = subparsers.add_parser("bench", help="decode prompts plain and with speculation, and compare")
    options.add_model_options(parser)
    parser.add_argument(
        "--prompts", type=Path, help='JSON lines with "prompt" (default: three built-in prompts)'
    )
    parser.add_argument("--no-chat", action="store_true", help="give the prompts to the model as they are")
    parser.add_argument("--max-tokens", type=int, default=128)
    options.add_sampling_options(parser)
    options.add_method_option(parser)
    options.add_speculative_options(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Decode every prompt both ways. Returns 1 when a text differs: speculation has to be lossless."""
    if args.max_tokens < 2:
        raise ConfigError(
            "--max-tokens", got=args.max_tokens, need="at least 2", fix="Raise it: one token has no pace."
        )
    prompts = read_json_lines(args.prompts, "prompt") if args.prompts else list(PROMPTS)
    config = options.speculative_config(args)
    params = SamplingParams(max_tokens=args.max_tokens, **options.sampling_fields(args))
    from tspec.llm import LLM  # slow to import, and wrong usage should not wait for it

    console = Console(stderr=True)
    with progress_bar() as on_progress:
        llm = LLM(
            args.checkpoint, speculative_config=config, on_progress=on_progress, **options.model_options(args)
        )
    with llm:
        pairs = _decode_all(llm, prompts, params, args, console)
    plain = _totals("plain", [pair[0] for pair in pairs])
    speculative = _totals(config.method, [pair[1] for pair in pairs])
    differing = [number for number, (one, other) in enumerate(pairs) if one.token_ids != other.token_ids]
    if args.json:
        print(json.dumps(_as_json(plain, speculative, differing)))
    else:
        Console().print(_table(plain, speculative))
        print(f"identical: {'no, prompts ' + str(differing) if differing else 'yes'}")
    return 1 if differing else 0


def _decode_all(
    llm: "LLM", prompts: Sequence[str], params: SamplingParams, args: argparse.Namespace, console: Console
) -> list[tuple["Result", "Result"]]:
    pairs = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("decode", total=2 * len(prompts))
        for number, prompt in enumerate(prompts, start=1):
            ids: Any = prompt if args.no_chat else llm.encode_chat([{"role": "user", "content": prompt}])
            results, each = [], params
            for way in ("off", "auto"):
                results.append(llm.generate(ids, replace(each, speculative=way))[0])
                # The same seed gives the same text both ways.
                each = replace(each, seed=results[0].seed)
                bar.advance(task)
            pairs.append((results[0], results[1]))
            if not console.is_terminal:
                console.print(f"prompt {number} of {len(prompts)}: {len(results[0].token_ids)} tokens")
    return pairs


def _totals(name: str, results: Sequence["Result"]) -> Totals:
    timed = [result.stats for result in results if result.stats.num_passes]
    if not timed:
        raise ConfigError(
            "decoded tokens",
            got="none after the first",
            need="at least one",
            fix="Give prompts with longer answers.",
        )
    return Totals(
        name,
        num_tokens=sum(stats.num_emitted - 1 for stats in timed),
        num_passes=sum(stats.num_passes for stats in timed),
        decode_s=sum(stats.decode_s for stats in timed),
    )


def _table(plain: Totals, speculative: Totals) -> Table:
    table = Table("decoding", "tokens/s", "passes", "tokens per pass", "speed-up")
    for totals in (plain, speculative):
        table.add_row(
            totals.name,
            f"{totals.tokens_per_second:.1f}",
            str(totals.num_passes),
            f"{totals.tokens_per_pass:.2f}",
            f"{totals.tokens_per_second / plain.tokens_per_second:.2f}x",
        )
    return table


def _as_json(plain: Totals, speculative: Totals, differing: list[int]) -> dict[str, Any]:
    ways = {
        totals.name: {
            "tokens_per_second": totals.tokens_per_second,
            "num_passes": totals.num_passes,
            "tokens_per_pass": totals.tokens_per_pass,
        }
        for totals in (plain, speculative)
    }
    return {
        **ways,
        "speed_up": speculative.tokens_per_second / plain.tokens_per_second,
        "is_identical": not differing,
    }
