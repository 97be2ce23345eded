"""`tspec bench CHECKPOINT`: the same prompts plain and with one proposer or several, whether the texts are the same,
and which was faster. Each prompt runs all ways in turn, so that a noisy machine treats all alike."""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tspec.cli import options
from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.core.speculative_config import MODEL_METHODS, UNION_METHODS, SpeculativeConfig
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


PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over prompts of one way of decoding.

    differing   numbers of the prompts, from 0 on, whose text is not that of plain decoding
    """

    num_tokens: int
    num_passes: int
    decode_s: float
    differing: tuple[int, ...] = ()

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
    options.add_method_option(parser, several=True)
    options.add_speculative_options(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Decode every prompt all ways. Returns 1 when a text differs: speculation has to be lossless."""
    if args.max_tokens < 2:
        raise ConfigError(
            "--max-tokens", got=args.max_tokens, need="at least 2", fix="Raise it: one token has no pace."
        )
    prompts = read_json_lines(args.prompts, "prompt") if args.prompts else list(PROMPTS)
    configs = _configs(args)
    params = SamplingParams(max_tokens=args.max_tokens, **options.sampling_fields(args))
    from tspec.llm import LLM  # slow to import, and wrong usage should not wait for it

    console = Console(stderr=True)
    with ExitStack() as stack:
        engines: dict[str, LLM] = {}
        for method, config in configs.items():
            with progress_bar() as on_progress:
                llm = LLM(
                    args.checkpoint,
                    speculative_config=config,
                    on_progress=on_progress,
                    **options.model_options(args),
                )
            engines[method] = stack.enter_context(llm)
        results = _decode_all(engines, prompts, params, args, console)
    totals = {name: _totals(each, results[PLAIN]) for name, each in results.items()}
    differing = sorted({number for each in totals.values() for number in each.differing})
    if args.json:
        print(json.dumps(_as_json(totals)))
    else:
        Console().print(_table(totals))
        print(f"identical: {'no, prompts ' + str(differing) if differing else 'yes'}")
    return 1 if differing else 0


def _configs(args: argparse.Namespace) -> dict[str, SpeculativeConfig]:
    """What each engine is asked for. Of several methods, those take the model that have a use for it."""
    several = args.speculative or [None]
    takes_model = {*MODEL_METHODS, *UNION_METHODS} if len(several) > 1 else set(several)
    configs = [
        options.speculative_config(args, method, with_model=method in takes_model) for method in several
    ]
    return {config.method: config for config in configs}


def _decode_all(
    engines: "Mapping[str, LLM]",
    prompts: Sequence[str],
    params: SamplingParams,
    args: argparse.Namespace,
    console: Console,
) -> "dict[str, list[Result]]":
    """Results by method; the first engine decodes plainly, too."""
    first = next(iter(engines.values()))
    ways = {PLAIN: (first, "off"), **{name: (llm, "auto") for name, llm in engines.items()}}
    results: dict[str, list[Result]] = {name: [] for name in ways}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("decode", total=len(ways) * len(prompts))
        for number, prompt in enumerate(prompts, start=1):
            ids: Any = prompt if args.no_chat else first.encode_chat([{"role": "user", "content": prompt}])
            each = params
            for name, (llm, way) in ways.items():
                results[name] += llm.generate(ids, replace(each, speculative=way))
                # The same seed gives the same text each way.
                each = replace(each, seed=results[PLAIN][-1].seed)
                bar.advance(task)
            if not console.is_terminal:
                num_tokens = len(results[PLAIN][-1].token_ids)
                console.print(f"prompt {number} of {len(prompts)}: {num_tokens} tokens")
    return results


def _totals(results: "Sequence[Result]", plain: "Sequence[Result]") -> Totals:
    timed = [result.stats for result in results if result.stats.num_passes]
    if not timed:
        raise ConfigError(
            "decoded tokens",
            got="none after the first",
            need="at least one",
            fix="Give prompts with longer answers.",
        )
    pairs = enumerate(zip(plain, results, strict=True))
    return Totals(
        num_tokens=sum(stats.num_emitted - 1 for stats in timed),
        num_passes=sum(stats.num_passes for stats in timed),
        decode_s=sum(stats.decode_s for stats in timed),
        differing=tuple(number for number, (one, other) in pairs if one.token_ids != other.token_ids),
    )


def _table(totals: Mapping[str, Totals]) -> Table:
    table = Table("decoding", "tokens/s", "passes", "tokens per pass", "speed-up")
    for name, each in totals.items():
        table.add_row(
            name,
            f"{each.tokens_per_second:.1f}",
            str(each.num_passes),
            f"{each.tokens_per_pass:.2f}",
            f"{each.tokens_per_second / totals[PLAIN].tokens_per_second:.2f}x",
        )
    return table


def _as_json(totals: Mapping[str, Totals]) -> dict[str, Any]:
    return {
        name: {
            "tokens_per_second": each.tokens_per_second,
            "num_passes": each.num_passes,
            "tokens_per_pass": each.tokens_per_pass,
            "speed_up": each.tokens_per_second / totals[PLAIN].tokens_per_second,
            "is_identical": not each.differing,
        }
        for name, each in totals.items()
    }
