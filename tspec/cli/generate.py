"""`tspec generate CHECKPOINT`: one prompt in, its text out as it comes."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tspec.cli import options
from tspec.cli.stats_tables import sources_table, stats_table
from tspec.core.constraint import LogitsConstraint
from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.core.text_files import decode_utf8
from tspec.progress import progress_bar

if TYPE_CHECKING:
    from tspec.llm import LLM, Result
    from tspec.runtime.speed_up import RoundTimes


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = subparsers.add_parser("generate", help="generate text from one prompt")
    options.add_model_options(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", help="the prompt itself (default: standard input)")
    source.add_argument("--file", type=Path, help="a file that holds the prompt")
    parser.add_argument("--chat", action="store_true", help="apply the checkpoint's chat template")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--ignore-eos", action="store_true", help="go on after an end-of-sequence token")
    grammar = parser.add_mutually_exclusive_group()
    grammar.add_argument(
        "--json-schema", type=Path, metavar="FILE", help="the text has to fit this JSON schema"
    )
    grammar.add_argument("--regex", metavar="PATTERN", help="the text has to match this regular expression")
    parser.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="with --json: log-probabilities of each token and the N likeliest",
    )
    options.add_sampling_options(parser)
    options.add_method_option(parser)
    options.add_speculative_options(parser)
    parser.add_argument("--stats", action="store_true", help="print figures to standard error afterwards")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of streaming text")
    return parser


def run(args: argparse.Namespace) -> int:
    """Check everything that costs nothing first, then load the model and decode."""
    fields = options.sampling_fields(args) | {"max_tokens": args.max_tokens, "ignore_eos": args.ignore_eos}
    params = SamplingParams(logprobs=args.logprobs, **fields)
    speculative = options.speculative_config(args, args.speculative)
    text = _read_prompt(args)
    from tspec.llm import LLM  # slow to import, and wrong usage should not wait for it

    with progress_bar() as on_progress:
        llm = LLM(
            args.checkpoint,
            speculative_config=speculative,
            on_progress=on_progress,
            **options.model_options(args),
        )
    with llm:
        params = dataclasses.replace(params, constraint=_constraint(args, llm))
        prompt = llm.encode_chat([{"role": "user", "content": text}]) if args.chat else text
        result = llm.generate(prompt, params)[0] if args.json else _stream(llm, prompt, params)
        metrics = llm.metrics()
    if args.json:
        print(json.dumps(_as_json(result)))
    if args.stats:
        console = Console(stderr=True)
        console.print(stats_table(result, metrics))
        if metrics.sources:
            console.print(sources_table(metrics.sources))
    if result.error is not None:
        print(f"tspec generate: {result.error}", file=sys.stderr)
    return 0 if result.error is None else 1


def _read_prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        return decode_utf8(os.fsencode(args.prompt), "--prompt")
    if args.file is not None:
        return decode_utf8(args.file.read_bytes(), str(args.file))
    if sys.stdin is None:  # closed by the shell, as `<&-` does
        raise ConfigError("prompt", got="no standard input", need="a prompt", fix="Use --prompt or --file.")
    return decode_utf8(sys.stdin.buffer.read(), "standard input")


def _constraint(args: argparse.Namespace, llm: "LLM") -> LogitsConstraint | None:
    """What --json-schema or --regex ask for."""
    if args.json_schema is None and args.regex is None:
        return None
    from tspec import (
        constraints,
    )  # needs the model's tokenizer, and a package that not every installation has

    if args.regex is not None:
        return constraints.regex(args.regex, llm.tokenizer)
    schema = decode_utf8(args.json_schema.read_bytes(), str(args.json_schema))
    return constraints.json_schema(schema, llm.tokenizer)


def _stream(llm: "LLM", prompt: str | list[int], params: SamplingParams) -> "Result":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    result = None
    for chunk in llm.stream(prompt, params):
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
        result = chunk.result
    sys.stdout.write("\n")
    assert result is not None
    return result


def _as_json(result: "Result") -> dict[str, Any]:
    stats = result.stats
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "error": result.error,
        "seed": result.seed,
        **(
            {}
            if result.logprobs is None
            else {"logprobs": [dataclasses.asdict(each) for each in result.logprobs]}
        ),
        "num_prompt_tokens": len(result.prompt_token_ids),
        "stats": {
            **{
                field.name: getattr(stats, field.name)
                for field in dataclasses.fields(stats)
                if _is_count(field.name)
            },
            "rounds": _rounds(stats.rounds),
            "tokens_per_second": stats.tokens_per_second,
            "tokens_per_pass": stats.tokens_per_pass,
            "acceptance_rate": stats.acceptance_rate,
            "queue_s": stats.queue_s,
            "time_to_first_token_s": stats.time_to_first_token_s,
        },
    }


def _is_count(name: str) -> bool:
    return not name.endswith("_s") and name != "rounds"


def _rounds(rounds: "RoundTimes") -> dict[str, Any]:
    return {
        **dataclasses.asdict(rounds),
        "cost_ratio": rounds.cost_ratio,
        "expected_speed_up": rounds.expected_speed_up,
        "measured_speed_up": rounds.measured_speed_up,
    }
