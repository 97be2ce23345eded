"""`tspec autotune kernels CHECKPOINT --prune-only ARCH`: what pruning discards of each op's space, and why."""

import time
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autotune.prune import Config, Pruned, prune
from autotune.tunable import TunableOp, tunable_ops
from tspec.build import load_config, plan_maker
from tspec.core.errors import ConfigError
from tspec.graph.plan import Bucket
from tspec.kernels.cuda.tuned import AttentionTuned

MAX_MODEL_LEN = 2048


def prune_checkpoint(folder: Path, dtype: str, arch: str, budget_s: float, only: str | None) -> None:
    """Print a line for each discarded configuration, then a table. Reads no weights, and needs no GPU.

    budget_s   time for compiling; what is left then is not discarded
    Errors     ConfigError for an op that the model does not have
    """
    config = load_config(folder, dtype)
    plan = plan_maker(config, MAX_MODEL_LEN, config.dtype)("all", Bucket(1, 1))
    ops = [op for op in tunable_ops(plan) if only in (None, op.op)]
    if not ops:
        names = ", ".join(sorted({op.op for op in tunable_ops(plan)}))
        raise ConfigError("--op", got=only, need=f"one of {names}", fix="Name one of them.")
    end = time.monotonic() + budget_s
    rows = []
    for number, op in enumerate(ops):
        now = time.monotonic()
        until = now + (end - now) / (len(ops) - number)
        rows.append((op, pruned := prune(op, arch, partial(_is_before, until))))
        for each in pruned.discarded:
            print(f"{op}: {numbers(each.config)}: {each.stage}: {each.reason}", flush=True)
    _show(rows, arch)


def _is_before(until: float) -> bool:
    return time.monotonic() < until


def numbers(config: Config) -> str:
    """A configuration in a few words."""
    rest = f"{config.num_warps} warps, {config.num_stages} stages"
    if isinstance(config, AttentionTuned):
        return f"{config.row_tile} rows, {rest}"
    return f"{config.block_n}x{config.block_k}, split {config.split_k}, {rest}"


def _show(rows: list[tuple[TunableOp, Pruned]], arch: str) -> None:
    table = Table("op", "illegal", "slow by the bound", "spill or worse", "left", "not compiled", title=arch)
    for op, pruned in rows:
        counts = [str(pruned.counts()[stage]) for stage in ("illegal", "slow", "compiled")]
        table.add_row(str(op), *counts, str(len(pruned.left)), str(pruned.num_unread))
    Console().print(table)
