"""From a checkpoint folder to a running engine: the only file that sees every package."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tspec.checkpoint.hf_config import read_config
from tspec.checkpoint.weights import account, checkpoint_dtype, open_checkpoint, resolve_tying
from tspec.core.config import ModelConfig
from tspec.core.dtypes import WEIGHT_DTYPES, DType
from tspec.core.errors import CapacityError, ConfigError
from tspec.core.params import SpeculativeConfig
from tspec.core.proposer import Proposer
from tspec.core.rope import context_limit, rope_table
from tspec.core.shapes import blocks_for
from tspec.core.tree import MAX_NODES
from tspec.graph.ir import Graph
from tspec.graph.lower import lower
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket, Plan
from tspec.kernels.cpu.host import read_host, usable_cpus
from tspec.models import build_graph, expected_tensors
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.none import NoProposer
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.executor import CpuExecutor
from tspec.runtime.kv_memory import block_bytes
from tspec.runtime.loop import Engine
from tspec.runtime.threads import ThreadPool
from tspec.runtime.weights import pack_weights

_log = logging.getLogger("tspec")

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it is, and how much there is."""

KV_MEMORY_SHARE = 0.5
"""Share of the machine's memory that KV blocks may take at most, unless kv_cache_mib says otherwise."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to build an engine; None means: decide from the checkpoint and the machine."""

    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 8
    kv_cache_mib: int | None = None
    num_threads: int | None = None


def build_engine(
    folder: Path,
    speculative: SpeculativeConfig,
    options: BuildOptions,
    on_progress: Progress = lambda what, done, total: None,
) -> Engine:
    """Read, check, compile and load a checkpoint.

    Errors   CheckpointError for anything wrong with the folder, before memory is taken; ConfigError for options
             that cannot be honoured; CapacityError when not even one sequence fits in the KV memory
    """
    _check_options(options)
    config = load_config(folder, options.dtype)
    max_model_len = _max_model_len(config, options.max_model_len)
    checkpoint = open_checkpoint(folder)
    config = resolve_tying(config, checkpoint)
    account(checkpoint, expected_tensors(build_graph(config)))
    make_plan = plan_maker(config, max_model_len)
    plan = make_plan("all", Bucket(1, 1))
    num_blocks = _num_blocks(plan, max_model_len, options)
    cos, sin = rope_table(config.rope, config.head_dim, config.max_position, max_model_len + MAX_NODES)
    weights = pack_weights(
        plan,
        checkpoint.load,
        {"rope.cos": cos, "rope.sin": sin},
        lambda done, total: on_progress("load weights", done, total),
    )
    threads = ThreadPool(options.num_threads or usable_cpus())
    executor = CpuExecutor(make_plan, weights, num_blocks, threads)
    proposer, max_candidates = make_proposer(speculative)
    engine = Engine(
        config,
        executor,
        proposer,
        max_model_len=max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_candidates=max_candidates,
        node_budget=read_host().cheap_rows,
    )
    _warm_up(executor, max_candidates, on_progress)
    return engine


def load_config(folder: Path, dtype: str = "auto") -> ModelConfig:
    """Read a model's configuration; `dtype` replaces the weights' own dtype. Reads no weights."""
    config = read_config(folder)
    if dtype == "auto":
        return replace(config, dtype=checkpoint_dtype(open_checkpoint(folder)))
    names = [each.value for each in WEIGHT_DTYPES]
    if dtype not in names:
        raise ConfigError(
            "dtype", got=repr(dtype), need=f"auto or one of {', '.join(names)}", fix="Pick one of them."
        )
    return replace(config, dtype=DType(dtype))


def plan_maker(config: ModelConfig, max_model_len: int) -> Callable[[str, Bucket], Plan]:
    """Return a function from a kind of pass and a bucket to its plan.

    Kinds: "all", "last" and "none" are the heads of `build_graph`; "logits" is "all" with the logits put out.
    """

    @cache
    def graph(kind: str) -> Graph:
        plain = build_graph(config, head="all" if kind == "logits" else kind, with_logits=kind == "logits")
        return fuse(plain)

    def make_plan(kind: str, bucket: Bucket) -> Plan:
        return lower(graph(kind), bucket, max_model_len=max_model_len)

    return make_plan


def make_proposer(speculative: SpeculativeConfig) -> tuple[Proposer, int]:
    """Return the proposer and the most candidates that it gives a sequence a round."""
    if speculative.method == "none":
        return NoProposer(), 0
    num_candidates = speculative.num_speculative_tokens or read_host().cheap_rows - 1
    proposer = NgramProposer(replace(speculative, num_speculative_tokens=num_candidates))
    proposer.warm_up()
    return proposer, num_candidates


def _warm_up(executor: CpuExecutor, max_candidates: int, on_progress: Progress) -> None:
    """Bind the plans of one sequence; the first pass compiles the kernels, unless a cache holds them."""
    buckets = [("last", smallest_bucket(1, MAX_NODES)), ("none", smallest_bucket(1, MAX_NODES))]
    buckets += [("all", smallest_bucket(1, nodes)) for nodes in range(1, max_candidates + 2)]
    for number, (kind, bucket) in enumerate(buckets, start=1):
        executor.prepare(kind, bucket)
        on_progress("bind plans", number, len(buckets))
    executor.warm_up()


def _check_options(options: BuildOptions) -> None:
    if options.device not in ("auto", "cpu"):
        raise ConfigError(
            "device", got=repr(options.device), need="auto or cpu", fix="This version runs on the CPU."
        )
    for name in ("max_model_len", "max_num_seqs", "kv_cache_mib", "num_threads"):
        value = getattr(options, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(name, got=repr(value), need="an integer of at least 1", fix="Change the value.")


def _max_model_len(config: ModelConfig, asked: int | None) -> int:
    limit = context_limit(config)
    if asked is None:
        return limit
    if asked > limit:
        raise ConfigError(
            "max_model_len",
            got=asked,
            need=f"at most {limit}, the model's context",
            fix="Lower max_model_len.",
        )
    return asked


def _num_blocks(plan: Plan, max_model_len: int, options: BuildOptions) -> int:
    """Blocks for max_num_seqs full contexts, as far as memory goes. Memory is taken as blocks are first written."""
    wanted = options.max_num_seqs * blocks_for(max_model_len + MAX_NODES)
    if options.kv_cache_mib is not None:
        budget = options.kv_cache_mib << 20
    else:
        budget = int(KV_MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    one_block = block_bytes(plan.states)
    if budget < one_block:
        raise CapacityError(
            "KV memory",
            got=f"{budget >> 20} MiB",
            need=f"at least {-(-one_block >> 20)} MiB, one block",
            fix="Raise kv_cache_mib.",
        )
    if budget // one_block < wanted:
        _log.info(
            "KV memory holds %d of the %d blocks that all sequences may need.", budget // one_block, wanted
        )
    return min(wanted, budget // one_block)
