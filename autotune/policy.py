"""`tspec autotune policy CHECKPOINT --out FILE`: how many candidates of which method pay on this machine."""

import argparse
import json
from pathlib import Path
from typing import Any

from tspec.cli import options
from tspec.core.errors import ConfigError
from tspec.core.speculative_config import MODEL_METHODS, SpeculativeConfig
from tspec.core.text_files import read_json_lines
from tspec.progress import progress_bar


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "policy", help="find how many candidates of which method pay, for LLM(policy=FILE)"
    )
    options.add_checkpoint(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the policy goes")
    parser.add_argument(
        "--proposer",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="draft model or head to tune besides the lookups; may be given again",
    )
    parser.add_argument(
        "--speculative-config",
        action="append",
        default=[],
        metavar="JSON",
        help="the same as an object of speculative_config's keys; may be given again",
    )
    parser.add_argument("--prompts", type=Path, help='JSON lines with "prompt" (default: built-in ones)')
    parser.add_argument("--max-tokens", type=int, default=128, help="of each answer (default: 128)")
    parser.add_argument("--dtype", default="auto", help="as the engine will have it")
    parser.add_argument("--device", default="auto", help="as the engine will have it")
    parser.add_argument("--num-threads", type=int, help="as the engine will have it")
    parser.add_argument("--max-model-len", type=int, help="most tokens of prompt and output together")
    return parser


def run(args: argparse.Namespace) -> int:
    """Make a policy, and print what is in it."""
    if args.max_tokens < 2:
        raise ConfigError("--max-tokens", got=args.max_tokens, need="at least 2", fix="Raise it.")
    models = model_configs(args.proposer, args.speculative_config)
    from autotune.policy_run import Job, make_policy  # slow to import, and wrong usage should not wait for it
    from autotune.report_tables import print_policy
    from autotune.texts import PROMPTS
    from tspec.build import BuildOptions

    engine_options = BuildOptions(
        dtype=args.dtype,
        device=args.device,
        max_model_len=args.max_model_len,
        num_threads=args.num_threads,
    )
    prompts = read_json_lines(args.prompts, "prompt") if args.prompts else list(PROMPTS)
    with progress_bar() as on_progress:
        job = Job(args.checkpoint, models, prompts, args.max_tokens, engine_options, on_progress)
        policy = make_policy(job, args.out)
    print_policy(policy)
    return 0


def model_configs(folders: list[Path], objects: list[str]) -> list[SpeculativeConfig]:
    """The methods with a model that are to be tuned, each once.

    Errors   ConfigError for what is no configuration, needs no model, or has the method of another
    """
    from tspec.build_draft import method_of  # loads torch

    configs = [SpeculativeConfig(method_of(folder), model=folder) for folder in folders]
    configs += [SpeculativeConfig.of(_object(text)) for text in objects]
    for config in configs:
        if config.method not in MODEL_METHODS:
            need = f"one of {', '.join(MODEL_METHODS)}"
            raise ConfigError(
                "--speculative-config", got=f"method {config.method}", need=need,
                fix="Leave it out: lookups are always tuned.",
            )  # fmt: skip
    methods = [config.method for config in configs]
    if len(set(methods)) < len(methods):
        fix = "Make a policy of each model."
        raise ConfigError("models", got=", ".join(methods), need="one of each method", fix=fix)
    return configs


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            "--speculative-config", got=f"no JSON ({error})", need="an object", fix="Correct it."
        ) from error
    if not isinstance(found, dict):
        raise ConfigError("--speculative-config", got=text[:40], need="an object", fix="Correct it.")
    return found
