"""Turns a plan into kernel launches over device tensors: every operand, configuration and scratch fixed once.

What comes out is run launch by launch (in the interpreter, for debugging) or recorded in a CUDA graph; it is the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from tspec.core.dtypes import DType
from tspec.core.errors import ContractError
from tspec.graph.ir import FEATURES, OF_TARGET, Shape
from tspec.graph.plan import Launch, Plan
from tspec.graph.signature import SIGNATURES
from tspec.kernels.cuda import (
    accept,
    accept_ratio,
    attention,
    draw_draft,
    edit_logits,
    expand_tree,
    features,
    head,
    kept,
    kv_commit,
    linear,
    logprobs,
    norm,
    rows,
    sample,
    top_tokens,
)
from tspec.kernels.cuda.attention_launch import AttentionShape
from tspec.kernels.cuda.launch import Scratch, ScratchBytes, scratch_bytes
from tspec.kernels.cuda.tuned import AttentionTuned, Tuned, TunedTable
from tspec.runtime.device_memory import SharedMemory
from tspec.runtime.staging import Staging, make_staging
from tspec.runtime.torch_dtypes import TORCH_DTYPES

PRODUCTS: Mapping[str, Callable[..., None]] = {
    "linear": linear.linear,
    "linear_add": linear.linear_add,
    "linear_silu_mul": linear.linear_silu_mul,
    "norm_linear": linear.norm_linear,
    "norm_linear_silu_mul": linear.norm_linear_silu_mul,
    "head_logits": head.head_logits,
    "head_sample": head.head_sample,
    "norm_head_logits": head.norm_head_logits,
    "norm_head_sample": head.norm_head_sample,
}
"""Kernels that stream weights; they take a configuration and scratch."""

PLAIN: Mapping[str, Callable[..., None]] = {
    "embed": rows.embed,
    "last_row": rows.last_row,
    "parent_rows": rows.parent_rows,
    "concat": rows.concat,
    "silu_add": rows.silu_add,
    "rms_norm": norm.rms_norm,
    "read_features": features.read_features,
    "top_tokens": top_tokens.top_tokens,
    "expand_tree": expand_tree.expand_tree,
    "edit_logits": edit_logits.edit_logits,
    "token_logprobs": logprobs.token_logprobs,
    "accept_match": accept.accept_match,
    "accept_ratio": accept_ratio.accept_ratio,
}
"""Kernels that take their operands and attributes and nothing else."""

SCRATCHED: Mapping[str, tuple[Callable[..., None], Callable[[int, int], ScratchBytes]]] = {
    "find_kept": (kept.find_kept, kept.scratch_bytes),
    "sample": (sample.sample, sample.scratch_bytes),
    "draw_draft": (draw_draft.draw_draft, draw_draft.scratch_bytes),
}
"""Kernels over rows of logits that take scratch, with what they need of it for a number of rows and a vocabulary."""

WITH_STATES = ("rope_attention", "kv_commit", "keep_features")
"""Kernels that write a state."""

LIVE_NODES = {"T": "num_nodes", "W": "level_nodes"}
"""By what a launch has rows of: the static input that says how many of them are live."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What all buckets of a model share on a device.

    k_cache, v_cache  [layers, num_blocks, KV heads, 64, head_dim]
    features          [num_blocks, 64, F], in blocks of the same table, where plans keep or read features
    arch              whose launch configurations to take, as "sm_90"
    tuned             configurations found for this device
    launch_pdl        whether each launch may start before the one before it ends: every kernel waits for that one
                      before it reads or writes what launches write
    """

    device: torch.device
    arch: str
    weights: Mapping[str, torch.Tensor]
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    tuned: TunedTable = field(default_factory=TunedTable)
    launch_pdl: bool = False
    features: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A bound plan. Calling the launches in order, between the two copies of staging, is one pass."""

    plan: Plan
    launches: tuple[Callable[[], None], ...]
    inputs: Staging
    outputs: Staging
    arena: torch.Tensor
    scratch: Scratch

    @property
    def size_bytes(self) -> int:
        """Device memory that a pass of this bucket uses, what it shares with others included."""
        pieces = (
            self.arena,
            self.inputs.device,
            self.outputs.device,
            self.scratch.partials,
            self.scratch.counters,
        )
        return sum(piece.numel() * piece.element_size() for piece in pieces if piece is not None)

    def launch(self) -> None:
        """Queue every launch."""
        for each in self.launches:
            each()


def check_plan(plan: Plan) -> None:
    """Refuse what no kernel takes, before anything of a model is loaded or compiled.

    Errors   ContractError for rows that are too wide for a norm by itself
    """
    for launch in plan.launches:
        if launch.kind == "rms_norm":
            norm.check_cols(plan.buffers[launch.outputs[0]].shape[-1])


def bind_device_plan(plan: Plan, model: DeviceModel, memory: SharedMemory | None = None) -> DevicePlan:
    """Give `plan` its memory on the device: what `memory` shares with other plans, None for its own.

    Errors   ContractError for an op that has no cuda kernel
    """
    memory = SharedMemory(model.device) if memory is None else memory
    inputs = make_staging(plan.inputs, model.device)
    outputs = make_staging(
        {name: (plan.buffers[name].shape, plan.buffers[name].dtype) for name in plan.outputs}, model.device
    )
    arena = memory.arena(plan.arena_bytes)
    buffers = {name: _buffer(arena, plan, name) for name in plan.buffers if name not in plan.outputs}
    binder = _Binder(plan, model, memory, {**buffers, **outputs.tensors, **inputs.tensors, **model.weights})
    launches = tuple(binder.bind(launch) for launch in plan.launches)
    return DevicePlan(plan, launches, inputs, outputs, arena, binder.scratch)


def _buffer(arena: torch.Tensor, plan: Plan, name: str) -> torch.Tensor:
    buffer = plan.buffers[name]
    memory = arena[buffer.offset_bytes : buffer.offset_bytes + buffer.size_bytes]
    return memory.view(TORCH_DTYPES[buffer.dtype]).view(buffer.shape)


class _Binder:
    """Knows every tensor of one plan. All launches share one scratch: they follow one another."""

    def __init__(
        self, plan: Plan, model: DeviceModel, memory: SharedMemory, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.plan = plan
        self.model = model
        self.tensors = tensors
        needs = [self._scratch_bytes(launch) for launch in plan.launches]
        partials, counters = (max(sizes, default=0) // 4 for sizes in zip(*needs, strict=True))
        self.scratch = memory.scratch(partials, counters)

    def bind(self, launch: Launch) -> Callable[[], None]:
        """One launch as a call without arguments."""
        return partial(self._bind(launch), launch_pdl=self.model.launch_pdl)

    def _bind(self, launch: Launch) -> Callable[..., None]:
        operands = [self._operand(name) for name in (*launch.outputs, *launch.inputs)]
        if launch.kind in PRODUCTS:
            tuned = self._tuned(launch)
            return partial(
                PRODUCTS[launch.kind], *operands, **launch.attrs, tuned=tuned, scratch=self.scratch
            )
        if launch.kind in PLAIN:
            if launch.kind == "embed":
                operands.append(self.tensors[LIVE_NODES[launch.row_dim]])  # padding gets zeros
            return partial(PLAIN[launch.kind], *operands, **launch.attrs)
        if launch.kind in SCRATCHED:
            return partial(SCRATCHED[launch.kind][0], *operands, **launch.attrs, scratch=self.scratch)
        if launch.kind == "rope_attention":
            return self._rope_attention(launch)
        if launch.kind == "keep_features":
            return partial(features.keep_features, *operands[:-1], **launch.attrs)  # the same memory again
        if launch.kind == "kv_commit":
            return self._kv_commit(launch)
        raise ContractError(
            f"launch {launch.number}",
            got=launch.kind,
            need=f"one of {', '.join((*PRODUCTS, *PLAIN, *SCRATCHED, *WITH_STATES))}",
            fix="Fuse the graph before lowering it: this op has no cuda kernel of its own.",
        )

    def _operand(self, name: str | None) -> torch.Tensor | None:
        if name is None or name in self.plan.states:
            return None if name is None else self._state(name)
        return self.tensors[name]

    def _state(self, name: str) -> torch.Tensor:
        if name == FEATURES:
            assert self.model.features is not None, "a plan with features is bound with them"
            return self.model.features
        side, layer = name.split(".")
        return (self.model.k_cache if side == "k_cache" else self.model.v_cache)[int(layer)]

    def _rope_attention(self, launch: Launch) -> Callable[..., None]:
        labels = [label.name for label in SIGNATURES[launch.kind].inputs]
        inputs = [
            self._operand(name)
            for label, name in zip(labels, launch.inputs, strict=True)
            if label not in ("k_cache", "v_cache")
        ]
        outputs = [self._operand(name) for name in launch.outputs]
        tuned = self._attention_tuned(launch)
        return partial(
            attention.rope_attention, *outputs, *inputs, **launch.attrs, tuned=tuned, scratch=self.scratch
        )

    def _kv_commit(self, launch: Launch) -> Callable[..., None]:
        verdict = [self._operand(name) for name in launch.inputs if name not in self.plan.states]
        return partial(kv_commit.kv_commit, self.model.k_cache, self.model.v_cache, *verdict)

    def _tuned(self, launch: Launch) -> Tuned:
        spec = next(self.plan.weights[str(name)] for name in launch.inputs if self._is_matrix(name))
        outputs = spec.shape[0] // (2 if spec.use == "gate_up" else 1)
        return self.model.tuned.for_product(launch.kind, outputs, spec.shape[1], spec.dtype, self.model.arch)

    def _is_matrix(self, name: str | None) -> bool:
        return name in self.plan.weights and self.plan.weights[str(name)].use in ("matrix", "gate_up")

    def _attention_shape(self, launch: Launch) -> AttentionShape:
        (batch, nodes, _), max_blocks = self._shape(launch.outputs[0]), self.plan.inputs["block_table"][0][1]
        num_heads, num_kv_heads = launch.attrs["num_heads"], launch.attrs["num_kv_heads"]
        return AttentionShape(batch, nodes, num_heads, num_kv_heads, launch.attrs["head_dim"], max_blocks)

    def _shape(self, name: str | None) -> tuple[int, ...]:
        return self.plan.buffers[str(name)].shape

    def _attention_tuned(self, launch: Launch) -> AttentionTuned:
        shape = self._attention_shape(launch)
        heads = shape.num_heads, shape.num_kv_heads, shape.head_dim
        _, cache_dtype = kv_states(self.plan)[0]
        return self.model.tuned.for_attention(*heads, cache_dtype, shape.nodes, self.model.arch)

    def _scratch_bytes(self, launch: Launch) -> ScratchBytes:
        if launch.kind == "rope_attention":
            return self._attention_shape(launch).scratch_bytes(self._attention_tuned(launch))
        if launch.kind in SCRATCHED:
            batch, rows_each, vocab = self._shape(launch.inputs[0])
            return SCRATCHED[launch.kind][1](batch * rows_each, vocab)
        if launch.kind not in PRODUCTS:
            return ScratchBytes(0, 0)
        batch, rows_each, *_ = self._shape(launch.outputs[0])
        x = self.plan.buffers[str(launch.inputs[0])]
        tuned, dtype = self._tuned(launch), TORCH_DTYPES[x.dtype]
        spec = next(self.plan.weights[str(name)] for name in launch.inputs if self._is_matrix(name))
        outputs = spec.shape[0] // (2 if spec.use == "gate_up" else 1)
        return scratch_bytes(launch.kind, batch * rows_each, outputs, dtype, tuned)


def kv_states(plan: Plan) -> list[tuple[Shape, DType]]:
    """Shapes and dtypes of the KV cache arrays of `plan`, keys and values of layer 0 first."""
    return [state for name, state in plan.states.items() if name != FEATURES]


def kv_tensors(plan: Plan, num_blocks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Zeroed KV memory for the states of `plan`: one tensor a side, so that a commit reaches all layers.

    Of a plan without attention both have no layers.
    """
    states = kv_states(plan)
    (_, *each), dtype = states[0] if states else (("num_blocks", 0, 0, 0), DType.FLOAT32)
    shape = (len(states) // 2, num_blocks, *map(int, each))
    return (
        torch.zeros(shape, dtype=TORCH_DTYPES[dtype], device=device),
        torch.zeros(shape, dtype=TORCH_DTYPES[dtype], device=device),
    )


def feature_tensor(plan: Plan, num_blocks: int, device: torch.device) -> torch.Tensor | None:
    """Zeroed memory for the features that `plan` keeps or reads; None where it has none."""
    if FEATURES not in plan.states:
        return None
    (_, *each), dtype = plan.states[FEATURES]
    return torch.zeros((num_blocks, *map(int, each)), dtype=TORCH_DTYPES[dtype], device=device)


def load_device_weights(
    plan: Plan,
    load: Callable[[str], torch.Tensor],
    tables: Mapping[str, Any],
    device: torch.device,
    target: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Every weight that `plan` reads, in its dtype, parts joined, on the device.

    target   the target's weights, for the plan of a proposer's model, which may read some of them where they lie
    """
    found = {}
    for name, spec in plan.weights.items():
        if target is not None and name.startswith(OF_TARGET):
            found[name] = target[name.removeprefix(OF_TARGET)]
            continue
        if spec.use == "derived":
            found[name] = torch.from_numpy(tables[name]).to(device)
            continue
        dtype = TORCH_DTYPES[DType.FLOAT32 if spec.use in ("norm", "bias") else spec.dtype]
        found[name] = torch.cat([load(part).to(device, dtype) for part in spec.parts]).contiguous()
    return found
