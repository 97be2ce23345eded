"""Options that several subcommands share, and what is made of them."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tspec.core.speculative_config import METHODS, OCCURRENCES, SAMPLE_METHODS, SpeculativeConfig

_DEFAULTS = SpeculativeConfig()


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """The folder of the model."""
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and safetensors files")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """The checkpoint and how to load it."""
    add_checkpoint(parser)
    parser.add_argument("--dtype", default="auto", help="auto (the checkpoint's), float32, bfloat16, float16")
    parser.add_argument("--max-model-len", type=int, help="most tokens of prompt and output together")
    parser.add_argument("--num-threads", type=int, help="threads of a pass (default: one a usable CPU)")
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="what `tspec autotune policy` measured: start from it"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a JSON line a round: what was proposed, and what came",
    )


def add_speculative_options(parser: argparse.ArgumentParser) -> None:
    """What `speculative_config` takes in Python."""
    parser.add_argument(
        "--num-speculative-tokens", type=int, help="most candidates a pass (default: what pays)"
    )
    parser.add_argument("--prompt-lookup-min", type=int, default=_DEFAULTS.prompt_lookup_min)
    parser.add_argument("--prompt-lookup-max", type=int, default=_DEFAULTS.prompt_lookup_max)
    parser.add_argument("--occurrence", choices=OCCURRENCES, default=_DEFAULTS.occurrence)
    parser.add_argument(
        "--suffix-corpus",
        type=Path,
        metavar="FILE",
        help='JSON lines with "text": what suffix lookup knows from the start',
    )
    parser.add_argument(
        "--speculative-model",
        type=Path,
        metavar="PATH",
        help="folder of a draft model, or of EAGLE or Medusa heads: proposes with it",
    )
    parser.add_argument("--draft-depth", type=int, help="levels of the candidate tree (default: by its size)")
    parser.add_argument(
        "--draft-top-k",
        type=int,
        default=_DEFAULTS.draft_top_k,
        help="candidates of each node; 1 proposes a chain (default)",
    )
    parser.add_argument(
        "--draft-sample-method",
        choices=SAMPLE_METHODS,
        default=_DEFAULTS.draft_sample_method,
        help="a model's likeliest tokens (default), or drawn ones",
    )
    parser.add_argument(
        "--aux-layer-offset",
        type=int,
        default=_DEFAULTS.aux_layer_offset,
        help="-1 or 1 tries other layers of the target for an EAGLE-3 head",
    )


def add_method_option(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Which proposer runs, or which ones, one after the other."""
    parser.add_argument(
        "--speculative",
        choices=METHODS,
        nargs="+" if several else None,
        help=f"proposer{'s' if several else ''} (default: auto, all that there are, as far as they pay)",
    )


SAMPLING_FIELDS: Mapping[str, tuple[type, str]] = {
    "temperature": (float, "0 is greedy (default: 1 where another option asks for sampling, else 0)"),
    "top_k": (int, "keep the k likeliest tokens"),
    "top_p": (float, "keep the likeliest tokens of this probability together"),
    "min_p": (float, "keep tokens of this share of the likeliest one's probability"),
    "seed": (int, "makes sampled text repeatable"),
    "repetition_penalty": (float, "above 1: tokens of prompt and output become less likely"),
    "presence_penalty": (float, "taken off the logits of tokens of the output"),
    "frequency_penalty": (float, "taken off once for each time"),
    "min_tokens": (int, "no end of the text before this many tokens"),
}
"""Fields of SamplingParams that have an option of their own."""


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen: what `SamplingParams` takes in Python, with its defaults."""
    group = parser.add_argument_group("sampling")
    for name, (kind, text) in SAMPLING_FIELDS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)


def sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of SamplingParams that the options set."""
    found = {name: getattr(args, name) for name in SAMPLING_FIELDS}
    return {name: value for name, value in found.items() if value is not None}


def speculative_config(
    args: argparse.Namespace, method: str | None, *, with_model: bool = True
) -> SpeculativeConfig:
    """The configuration that the options ask for, with `method`, or the usual one for None.

    Errors: ConfigError for what cannot be
    """
    return SpeculativeConfig(
        method=method or _DEFAULTS.method,
        model=args.speculative_model if with_model else None,
        num_speculative_tokens=args.num_speculative_tokens,
        draft_depth=args.draft_depth,
        draft_top_k=args.draft_top_k,
        draft_sample_method=args.draft_sample_method,
        aux_layer_offset=args.aux_layer_offset,
        prompt_lookup_min=args.prompt_lookup_min,
        prompt_lookup_max=args.prompt_lookup_max,
        occurrence=args.occurrence,
        suffix_corpus=args.suffix_corpus,
    )


def model_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `LLM`."""
    return {
        "dtype": args.dtype,
        "max_model_len": args.max_model_len,
        "num_threads": args.num_threads,
        "policy": args.policy,
        "trace": args.trace,
    }
