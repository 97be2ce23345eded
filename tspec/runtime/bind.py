"""Turns a plan into a program: every operand of every launch becomes an address or a number, once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tspec.core.dtypes import DType
from tspec.core.errors import ContractError
from tspec.graph.plan import Launch, Plan
from tspec.graph.signature import SIGNATURES
from tspec.kernels.cpu import (
    accept_ratio,
    attention,
    attention_tiles,
    kept,
    linear,
    logprobs,
    program,
    sampling,
)
from tspec.kernels.cpu.pack import STORAGE
from tspec.runtime.memory import address, allocate
from tspec.runtime.weights import PackedWeights

NUMPY_DTYPES = {DType.FLOAT32: np.float32, DType.INT32: np.int32, DType.INT64: np.int64}


ON_LOGITS = ("edit_logits", "find_kept", "sample", "token_logprobs")


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """A plan with its memory. `inputs` and `outputs` are views that the host writes and reads."""

    plan: Plan
    launches: np.ndarray
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    arena: np.ndarray
    keep: tuple[np.ndarray, ...]


def bind_plan(
    plan: Plan, weights: PackedWeights, states: Mapping[str, np.ndarray], num_threads: int
) -> BoundPlan:
    """Give `plan` an arena, static inputs and scratch, and write its launches."""
    arena = allocate(plan.arena_bytes)
    inputs = {
        name: allocate(int(np.prod(shape)) * dtype.itemsize_bytes).view(NUMPY_DTYPES[dtype]).reshape(shape)
        for name, (shape, dtype) in plan.inputs.items()
    }
    buffers = {
        name: arena[buffer.offset_bytes : buffer.offset_bytes + buffer.size_bytes]
        for name, buffer in plan.buffers.items()
    }
    binder = _Binder(plan, weights, {**buffers, **inputs, **weights.memory, **states}, num_threads)
    launches = np.stack([binder.first(), *(binder.bind(launch) for launch in plan.launches)])
    _look_ahead(launches)
    outputs = {name: _typed(plan, name, buffers[name]) for name in plan.outputs}
    return BoundPlan(plan, launches, inputs, outputs, arena, tuple(binder.scratch.values()))


def _typed(plan: Plan, name: str, memory: np.ndarray) -> np.ndarray:
    buffer = plan.buffers[name]
    return memory.view(NUMPY_DTYPES[buffer.dtype]).reshape(buffer.shape)


def _look_ahead(launches: np.ndarray) -> None:
    """Tell each launch which weights come next, so that threads that wait for others can fetch them."""
    codes = [program.OPERANDS[kind][0] for kind in ("linear", "linear_silu_mul", "head_sample")]
    product = program.OPERANDS["linear"][1]
    k, storage, weight = (product.index(name) + 1 for name in ("k", "storage", "weight"))
    start = size_bytes = 0
    for launch in launches[::-1]:
        launch[program.AHEAD : program.AHEAD + 2] = start, size_bytes
        if launch[0] in codes:
            start, size_bytes = launch[weight], linear.panel_bytes(launch[storage], launch[k])


def _logits_scratch_bytes(vocab: int) -> int:
    """Bytes a thread that any of the launches over logits needs."""
    return max(
        kept.kept_scratch_bytes(vocab), logprobs.logprobs_scratch_bytes(vocab), sampling.SAMPLE_SCRATCH_BYTES
    )


class _Binder:
    """Knows where every name of one plan lives."""

    def __init__(
        self, plan: Plan, weights: PackedWeights, memory: Mapping[str, np.ndarray], num_threads: int
    ) -> None:
        self.plan = plan
        self.weights = weights
        self.memory = memory
        self.num_threads = num_threads
        self.rows = plan.bucket.rows * plan.bucket.nodes
        self.max_blocks = plan.inputs["block_table"][0][1]
        self.scratch: dict[str, np.ndarray] = {}
        for name, words in (
            ("frame", 4),
            *((name, self.rows + plan.bucket.rows) for name in program.FRAME[1:]),
        ):
            self.scratch[name] = allocate(words * 8)

    def first(self) -> np.ndarray:
        """The launch that numbers the live rows."""
        return program.bind(
            "index_rows",
            {
                **self._frame(),
                "num_nodes": address(self.memory["num_nodes"]),
                "num_sequences": self.plan.bucket.rows,
                "max_nodes": self.plan.bucket.nodes,
            },
        )

    def bind(self, launch: Launch) -> np.ndarray:
        """One launch of the plan as words."""
        if launch.kind not in program.OPERANDS:
            raise ContractError(
                f"launch {launch.number}",
                got=launch.kind,
                need=f"one of {', '.join(program.OPERANDS)}",
                fix="Fuse the graph before lowering it: this op has no CPU kernel of its own.",
            )
        operands: dict[str, Any] = {
            **self._frame(),
            **self._labels(launch),
            **self._sizes(launch),
            **launch.attrs,
        }
        operands["space"] = self._space(launch)
        operands["place"] = address(self.scratch["seq_place" if operands["space"] else "row_place"])
        operands["window"] = launch.attrs.get("window") or 0
        return program.bind(launch.kind, operands)

    def _frame(self) -> dict[str, int]:
        return {name: address(self.scratch[name]) for name in program.FRAME}

    def _labels(self, launch: Launch) -> dict[str, int]:
        """Addresses of the operands, by their names in the op's signature; 0 for an absent one."""
        signature = SIGNATURES[launch.kind]
        found: dict[str, int] = {}
        for labels, names in ((signature.outputs, launch.outputs), (signature.inputs, launch.inputs)):
            for label, name in zip(labels, names, strict=False):
                found[label.name] = 0 if name is None else address(self.memory[name])
        return found

    def _sizes(self, launch: Launch) -> dict[str, int]:
        """Everything else that a kernel of this kind asks for."""
        sizes = {"max_nodes": self.plan.bucket.nodes, "max_blocks": self.max_blocks}
        read = [self.plan.weights[str(name)] for name in launch.inputs if name in self.plan.weights]
        weight = next((spec for spec in read if spec.use in ("embed", "matrix", "gate_up")), None)
        if weight is not None:
            sizes["storage"] = STORAGE[weight.dtype]
            sizes["k"] = sizes["cols"] = weight.shape[1]
            sizes["n"] = weight.shape[0] // (2 if weight.use == "gate_up" else 1)
            sizes["is_packed"] = int(self.weights.is_packed(weight.name))
        if weight is not None and launch.kind != "embed":
            stride = linear.scratch_bytes(self.rows, weight.shape[1], launch.kind.startswith("norm_"))
            sizes["scratch"], sizes["scratch_stride"] = self._scratch(f"linear.{stride}", stride)
            sizes["best"] = self._scratch("best", self.rows * linear.BEST_BYTES)[0]
        elif launch.kind == "last_row":
            sizes["cols"] = self.plan.buffers[launch.outputs[0]].shape[-1]
        elif launch.kind in ON_LOGITS:
            sizes["vocab"] = vocab = self.plan.buffers[str(launch.inputs[0])].shape[-1]
            # One piece for all three, so that a plan needs no more than the largest.
            sizes["scratch"], sizes["scratch_stride"] = self._scratch("logits", _logits_scratch_bytes(vocab))
        elif launch.kind == "accept_ratio":
            sizes |= self._acceptance_sizes(launch)
        else:
            sizes |= self._cache_sizes(launch)
        return sizes

    def _acceptance_sizes(self, launch: Launch) -> dict[str, int]:
        """Both vocabularies, and scratch."""
        labels = [label.name for label in SIGNATURES[launch.kind].inputs]
        names = dict(zip(labels, launch.inputs, strict=True))
        scratch, stride = self._scratch("accept_ratio", accept_ratio.SCRATCH_BYTES)
        return {
            "vocab": self.plan.buffers[str(names["logits"])].shape[-1],
            "draft_vocab": self.plan.inputs[str(names["draft_logprobs"])][0][-1],
            "scratch": scratch,
            "scratch_stride": stride,
        }

    def _cache_sizes(self, launch: Launch) -> dict[str, int]:
        """Sizes and scratch of the launches that touch the KV cache."""
        caches = [str(name) for name in launch.inputs if name in self.plan.states]
        if not caches:
            return {}
        (_, num_kv_heads, _, head_dim), dtype = self.plan.states[caches[0]]
        assert isinstance(num_kv_heads, int) and isinstance(head_dim, int), caches
        sizes = {"storage": STORAGE[dtype], "head_dim": head_dim, "num_kv_heads": num_kv_heads}
        if launch.kind == "rope_attention":
            num_heads = launch.attrs["num_heads"]
            partials = attention.partial_bytes(num_heads, head_dim, self.rows, self.max_blocks)
            sizes["partials"] = self._shared("partials", partials)
            stride = attention_tiles.scratch_bytes(head_dim)
            sizes["scratch"], sizes["scratch_stride"] = self._scratch("attention", stride)
        else:
            keys, values = (
                [address(self.memory[name]) for name in caches if name.startswith(side)] for side in "kv"
            )
            sizes["num_layers"] = len(keys)
            sizes["k_caches"], sizes["v_caches"] = (
                self._list("k_caches", keys),
                self._list("v_caches", values),
            )
        return sizes

    def _space(self, launch: Launch) -> int:
        """0 where a launch works on nodes, 1 where it works on sequences (after `last_row`)."""
        names = [name for name in (*launch.inputs, *launch.outputs) if name in self.plan.buffers]
        nodes = self.plan.bucket.nodes
        per_row = [self.plan.buffers[str(name)].shape for name in names]
        return int(any(len(shape) >= 2 and shape[1] == 1 != nodes for shape in per_row))

    def _scratch(self, name: str, bytes_a_thread: int) -> tuple[int, int]:
        """Scratch that all launches of a kind share: (address, bytes from one thread's to the next)."""
        stride = -(-bytes_a_thread // 128) * 128
        return self._shared(name, stride * self.num_threads), stride

    def _shared(self, name: str, size_bytes: int) -> int:
        if name not in self.scratch:
            self.scratch[name] = allocate(size_bytes)
        assert len(self.scratch[name]) >= size_bytes, name
        return address(self.scratch[name])

    def _list(self, name: str, numbers: list[int]) -> int:
        place = self._shared(name, 8 * len(numbers))
        self.scratch[name].view(np.int64)[: len(numbers)] = numbers
        return place
