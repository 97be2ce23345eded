"""`tspec inspect CHECKPOINT`: the graph, the fused graph, or the plan that would run; of a head, what it is.

Reads no weights.
"""

import argparse
import re
from pathlib import Path

from tspec.checkpoint.head_kind import is_head
from tspec.checkpoint.hf_config import read_config
from tspec.cli import options
from tspec.core.dtypes import DType
from tspec.core.errors import ConfigError
from tspec.core.rope import context_limit
from tspec.core.tree import MAX_NODES
from tspec.graph.lower import lower
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket
from tspec.graph.roofline import DEVICES, find_device, render
from tspec.graph.show import show
from tspec.models import build_graph


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = subparsers.add_parser("inspect", help="print the graph or the plan of a checkpoint, or a head")
    options.add_checkpoint(parser)
    parser.add_argument("--stage", choices=("graph", "fused", "plan"), default="plan")
    parser.add_argument(
        "--bucket", default="1x8", help="sequences x nodes of the plan, as 4x16 or 4,16 (default: 1x8)"
    )
    parser.add_argument(
        "--head", choices=("all", "last", "none"), default="all", help="which rows reach the head"
    )
    parser.add_argument("--context", type=int, default=0, help="committed tokens a sequence, for the costs")
    parser.add_argument(
        "--device", choices=sorted(DEVICES), default="cpu", help="whose roofline (default: cpu)"
    )
    parser.add_argument("--target", type=Path, help="of a head: the checkpoint that it has to fit")
    parser.add_argument(
        "--layer-offset",
        type=int,
        default=0,
        help="of a head: added to the layers whose hidden states it reads",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="of an EAGLE-3 head: decode with it and --target, and say which layers it was trained on",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Print one stage, or what is known of a head."""
    if is_head(args.checkpoint):
        from tspec.cli.inspect_head import print_head  # loads torch

        print_head(args.checkpoint, args.target, args.layer_offset)
        if args.calibrate:
            _calibrate(args.checkpoint, args.target)
        return 0
    for option, is_given in (
        ("--target", args.target is not None),
        ("--layer-offset", args.layer_offset != 0),
    ):
        if is_given:
            fix = f"Leave out {option}, or pass the folder of a head."
            raise ConfigError(option, got=f"{args.checkpoint}, a whole model", need="a head", fix=fix)
    bucket = parse_bucket(args.bucket)
    config = read_config(args.checkpoint)
    _check_context(args.context, context_limit(config))
    activations = DType.FLOAT32 if args.device == "cpu" else config.dtype
    graph = build_graph(config, head=args.head, activations=activations)
    if args.stage == "graph":
        print(show(graph))
        return 0
    fused = fuse(graph)
    if args.stage == "fused":
        print(show(fused))
        return 0
    plan = lower(fused, bucket, max_model_len=context_limit(config), context=args.context)
    print(render(plan, find_device(args.device)))
    return 0


def _calibrate(head: Path, target: Path | None) -> None:
    if target is None:
        raise ConfigError("--calibrate", got="no --target", need="the head's target", fix="Pass --target.")
    from tspec.cli.calibrate import calibrate  # loads torch

    calibrate(head, target)


def parse_bucket(text: str) -> Bucket:
    """Read `4x16` or `4,16`. Errors: ConfigError for anything else."""
    found = re.fullmatch(r"([0-9]{1,6})[x,]([0-9]{1,6})", text)
    sequences, nodes = map(int, found.groups()) if found else (0, 0)
    if sequences < 1 or not 1 <= nodes <= MAX_NODES:
        raise ConfigError(
            "--bucket",
            got=repr(text),
            need=f"sequences x nodes as in 4x16, at most {MAX_NODES} nodes",
            fix="Change the numbers.",
        )
    return Bucket(sequences, nodes)


def _check_context(context: int, limit: int) -> None:
    if not 0 <= context <= limit:
        raise ConfigError(
            "--context", got=context, need=f"0 to {limit}, the model's context", fix="Change the number."
        )
