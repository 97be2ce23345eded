"""From a checkpoint folder to a running engine: the only file that sees every package."""

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tspec.build_draft import Draft
from tspec.build_policy import apply_policy
from tspec.build_proposer import (
    AUTO_NODES,
    make_proposer,
    most_candidates,
    open_model,
    plain_times,
    time_costs,
)
from tspec.checkpoint.hf_config import read_config
from tspec.checkpoint.weights import Checkpoint, account, checkpoint_dtype, open_checkpoint, resolve_tying
from tspec.core.config import ModelConfig
from tspec.core.dtypes import WEIGHT_DTYPES, DType
from tspec.core.errors import CapacityError, ConfigError
from tspec.core.policy import Policy
from tspec.core.proposer import Proposer
from tspec.core.rope import context_limit, rope_table
from tspec.core.sampling import FILTERED, pass_kind
from tspec.core.shapes import blocks_for
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES
from tspec.graph.ir import FEATURES, Graph, Shape
from tspec.graph.lower import lower
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket, Plan
from tspec.kernels.cpu.host import read_host, usable_cpus
from tspec.kernels.cpu.store import read_table
from tspec.models import PASS_KINDS, build_graph, expected_tensors
from tspec.models.build_graph import Features
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.executor import CpuExecutor
from tspec.runtime.inputs import Executor
from tspec.runtime.kv_memory import block_bytes
from tspec.runtime.loop import Engine
from tspec.runtime.metrics_report import OnMetrics
from tspec.runtime.threads import ThreadPool
from tspec.runtime.trace import TraceFile
from tspec.runtime.weights import pack_weights

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("tspec")

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it is, and how much there is."""

KV_MEMORY_SHARE = 0.5
"""Share of the free memory that KV blocks may take at most, unless kv_cache_mib says otherwise."""

DEVICES = ("auto", "cpu", "cuda")
"""`auto` is the CPU: the cuda backend has been proven in Triton's interpreter and by its compiler, on no device yet."""

CUDA_CHEAP_NODES = 8
"""Nodes of a sequence that a device verifies at about the price of one, by the roofline."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to build an engine; None means: decide from the checkpoint and the machine."""

    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 8
    kv_cache_mib: int | None = None
    num_threads: int | None = None
    on_metrics: OnMetrics | None = None
    metrics_interval_s: float = 10.0
    trace: str | Path | None = None
    policy: str | Path | None = None


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
    speculative, policy = apply_policy(options, speculative, folder, config)
    account(checkpoint, expected_tensors(build_graph(config)))
    is_cuda = options.device == "cuda"
    num_cheap_nodes = CUDA_CHEAP_NODES if is_cuda else read_host().cheap_rows
    activations = config.dtype if is_cuda else DType.FLOAT32
    draft = open_model(
        speculative,
        folder,
        config,
        max_model_len=max_model_len,
        num_cheap=num_cheap_nodes - 1,
        activations=activations,
    )
    loading = _Loading(
        checkpoint=checkpoint,
        config=config,
        max_model_len=max_model_len,
        max_candidates=most_candidates(speculative, num_cheap_nodes - 1, draft),
        num_cheap_nodes=num_cheap_nodes,
        options=options,
        on_progress=on_progress,
        draft=draft,
        policy=policy,
    )
    trace = None if options.trace is None else TraceFile(options.trace)
    return _assemble(speculative, loading, trace)


def _assemble(speculative: SpeculativeConfig, loading: "_Loading", trace: TraceFile | None) -> Engine:
    """Load what was checked, and plug it together."""
    options, draft, is_cuda = loading.options, loading.draft, loading.options.device == "cuda"
    ready = _cuda_ready(loading) if is_cuda else _cpu_ready(loading)
    costs, policy = None, loading.policy
    if speculative.method == "auto":
        sizes = (loading.max_candidates, ready.max_num_seqs, loading.max_model_len)
        asked = (ready.executor, speculative, loading.num_cheap_nodes, *sizes)
        costs = time_costs(*asked, is_padded=is_cuda) if policy is None else policy.costs
    if trace is not None:
        trace.start(costs)
    cheap = MAX_NODES if is_cuda else loading.num_cheap_nodes
    measured = (costs, loading.max_model_len, policy, ready.executor)
    return Engine(
        loading.config,
        ready.executor,
        make_proposer(speculative, loading.max_candidates, draft, ready.proposer, *measured),
        max_model_len=loading.max_model_len,
        max_num_seqs=ready.max_num_seqs,
        max_candidates=loading.max_candidates,
        node_budget=max(cheap, 1 + loading.max_candidates) if costs is None else AUTO_NODES,
        num_cheap_nodes=cheap,
        costs=costs,
        trace=trace,
        acceptance=speculative.acceptance,
        # A device computes padding, and captures buckets ahead; features are kept of accepted nodes alone.
        mixes_prompts=not is_cuda and (draft is None or draft.features is None),
        on_metrics=options.on_metrics,
        metrics_interval_s=options.metrics_interval_s,
        plain_times=None if loading.max_candidates == 0 else plain_times(ready.executor, policy),
    )


@dataclass(frozen=True, slots=True)
class _Loading:
    """What a backend needs to make its executor."""

    checkpoint: Checkpoint
    config: ModelConfig
    max_model_len: int
    max_candidates: int
    num_cheap_nodes: int
    options: BuildOptions
    on_progress: Progress
    draft: Draft | None = None
    policy: Policy | None = None

    @property
    def tables(self) -> dict[str, Any]:
        """The weights that no checkpoint holds."""
        num_positions = self.max_model_len + MAX_NODES
        cos, sin = rope_table(self.config.rope, self.config.head_dim, self.config.max_position, num_positions)
        tables = {"rope.cos": cos, "rope.sin": sin}
        if self.draft is not None and self.draft.target_index is not None:
            tables["draft.index"] = self.draft.target_index
        return tables

    def plan_maker(self, activations: DType) -> Callable[[str, Bucket], Plan]:
        """Plans of the target, with what a proposer's model needs of it."""
        return plan_maker(
            self.config,
            self.max_model_len,
            activations,
            features=None if self.draft is None else self.draft.features,
            draft_vocab=None if self.draft is None else self.draft.draft_vocab,
        )

    def load_weights(self, done: int, total: int) -> None:
        """Tell how far the weights are."""
        self.on_progress("load weights", done, total)

    def passes(self, max_rows: int) -> list[tuple[str, Bucket]]:
        """The kinds of passes and buckets of up to `max_rows` sequences that decoding meets."""
        rows = _row_sizes(max_rows)
        nodes = sorted({smallest_bucket(1, count).nodes for count in range(1, self.max_candidates + 2)})
        return [("all", Bucket(row, count)) for row in rows for count in nodes] + [
            (kind, Bucket(row, MAX_NODES)) for row in rows for kind in ("last", "none")
        ]


@dataclass(frozen=True, slots=True)
class _Ready:
    """The target's executor, and a proposer with one of its own."""

    executor: Executor
    proposer: Proposer | None
    max_num_seqs: int


def _cpu_ready(loading: _Loading) -> _Ready:
    """Pack the weights, start the threads, bind the plans of one sequence; compile the kernels, or load them."""
    make_plan, draft, options = loading.plan_maker(DType.FLOAT32), loading.draft, loading.options
    plan = make_plan(_widest_kind(draft), Bucket(1, 1))
    draft_plan = None if draft is None else draft.make_plan(*draft.passes(1)[0])
    num_blocks = _num_blocks(_states(plan, draft_plan), loading, _host_memory_bytes())
    weights = pack_weights(plan, loading.checkpoint.load, loading.tables, loading.load_weights)
    threads = ThreadPool(options.num_threads or usable_cpus())
    tuned = read_table(threads.num_threads)
    executor = CpuExecutor(make_plan, weights, num_blocks, threads, tuned=tuned)
    passes = [(executor, *each) for each in loading.passes(max_rows=1)]
    draft_executor = None
    if draft is not None and draft_plan is not None:
        executor.prepare("all", Bucket(1, 1))  # its states are there from now on
        packed = pack_weights(draft_plan, draft.load, draft.tables, loading.load_weights, target=weights)
        shared = {name: memory for name, memory in executor.states.items() if name == FEATURES}
        draft_executor = CpuExecutor(draft.make_plan, packed, num_blocks, threads, shared, tuned)
        passes += [(draft_executor, *each) for each in draft.passes(1)]
    for number, (each, kind, bucket) in enumerate(passes, start=1):
        each.prepare(kind, bucket)
        loading.on_progress("bind plans", number, len(passes))
    executor.warm_up()
    if draft is None or draft_executor is None:
        return _Ready(executor, None, options.max_num_seqs)
    draft_executor.warm_up()
    return _Ready(executor, draft.make_proposer(draft_executor), options.max_num_seqs)


def _cuda_ready(loading: _Loading) -> _Ready:
    """Put the weights on the device and capture every bucket, as far as there is room.

    Imports Triton, which not every machine has.
    """
    from tspec.runtime.cuda_executor import find_device

    return ready_on(*find_device(), loading)


def ready_on(device: "torch.device", arch: str, free_bytes: int, loading: _Loading) -> _Ready:
    """The executors on one device, all passes captured; on the interpreter's they are bound only."""
    from tspec.runtime.cuda_bind import check_plan, feature_tensor, kv_tensors, load_device_weights
    from tspec.runtime.cuda_executor import CudaExecutor, device_model

    make_plan, draft = loading.plan_maker(loading.config.dtype), loading.draft
    plan = make_plan(_widest_kind(draft), Bucket(1, 1))
    draft_plan = None if draft is None else draft.make_plan(*draft.passes(1)[0])
    for each in (plan, draft_plan):
        if each is not None:
            check_plan(each)
    num_blocks = _num_blocks(_states(plan, draft_plan), loading, free_bytes)
    weights = load_device_weights(plan, loading.checkpoint.load, loading.tables, device)
    features = feature_tensor(plan, num_blocks, device)
    model = device_model(device, arch, weights, *kv_tensors(plan, num_blocks, device), features)
    executor, proposer = CudaExecutor(make_plan, model), None
    max_rows = executor.capture(loading.passes(loading.options.max_num_seqs))
    _log.info("Device memory by pass and bucket:\n%s", executor.report())
    if draft is not None and draft_plan is not None:
        own = load_device_weights(draft_plan, draft.load, draft.tables, device, target=weights)
        caches = kv_tensors(draft_plan, num_blocks, device)
        draft_executor = CudaExecutor(draft.make_plan, device_model(device, arch, own, *caches, features))
        max_rows = draft_executor.capture(
            [each for rows in _row_sizes(max_rows) for each in draft.passes(rows)]
        )
        proposer = draft.make_proposer(draft_executor)
    return _Ready(executor, proposer, min(max_rows, loading.options.max_num_seqs))


def _widest_kind(draft: Draft | None) -> str:
    """The pass that reads the most weights: one that tests draws knows the draft's vocabulary, too."""
    return "all" if draft is None or draft.target_index is None else pass_kind("ratio", FILTERED)


def _row_sizes(max_rows: int) -> list[int]:
    return [1 << power for power in range((max_rows - 1).bit_length() + 1)]


def _states(plan: Plan, draft_plan: Plan | None) -> dict[str, tuple[Shape, DType]]:
    """All that a KV block holds, under names of its own."""
    if draft_plan is None:
        return plan.states
    own = {name: spec for name, spec in draft_plan.states.items() if name != FEATURES}
    return plan.states | {f"{name} of the draft": spec for name, spec in own.items()}


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


def plan_maker(
    config: ModelConfig,
    max_model_len: int,
    activations: DType = DType.FLOAT32,
    *,
    features: Features | None = None,
    draft_vocab: int | None = None,
) -> Callable[[str, Bucket], Plan]:
    """Return a function from a kind of pass (PASS_KINDS) and a bucket to its plan, with rows in dtype `activations`.

    features, draft_vocab   see `build_graph`
    """
    more: dict[str, Any] = {"features": features, "draft_vocab": draft_vocab, "activations": activations}

    @cache
    def graph(kind: str) -> Graph:
        return fuse(build_graph(config, **more, **PASS_KINDS[kind]))

    def make_plan(kind: str, bucket: Bucket) -> Plan:
        return lower(graph(kind), bucket, max_model_len=max_model_len)

    return make_plan


def _check_options(options: BuildOptions) -> None:
    if options.device not in DEVICES:
        raise ConfigError(
            "device", got=repr(options.device), need=f"one of {', '.join(DEVICES)}", fix="Pick one of them."
        )
    for name in ("max_model_len", "max_num_seqs", "kv_cache_mib", "num_threads"):
        value = getattr(options, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(name, got=repr(value), need="an integer of at least 1", fix="Change the value.")
    interval_s = options.metrics_interval_s
    if not isinstance(interval_s, Real) or not 0 <= interval_s < math.inf:
        raise ConfigError(
            "metrics_interval_s", got=repr(interval_s), need="seconds, at least 0", fix="Change the value."
        )
    if options.on_metrics is not None and not callable(options.on_metrics):
        raise ConfigError(
            "on_metrics", got=repr(options.on_metrics), need="a function", fix="Pass what takes the metrics."
        )


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


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _num_blocks(states: Mapping[str, tuple[Shape, DType]], loading: _Loading, memory_bytes: int) -> int:
    """Blocks for max_num_seqs full contexts, as far as memory goes. On the CPU it is taken as blocks are written."""
    options = loading.options
    wanted = options.max_num_seqs * blocks_for(loading.max_model_len + MAX_NODES)
    asked = None if options.kv_cache_mib is None else options.kv_cache_mib << 20
    budget = int(KV_MEMORY_SHARE * memory_bytes) if asked is None else asked
    one_block = block_bytes(states)
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
