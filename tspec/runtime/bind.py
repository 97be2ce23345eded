"""Turns a plan into a program: every operand of every launch becomes an address or a number, once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tspec.core.dtypes import DType
from tspec.core.errors import ContractError
from tspec.graph.plan import Launch, Plan, WeightSpec
from tspec.graph.signature import SIGNATURES
from tspec.kernels.cpu import (
    accept_ratio,
    attention,
    attention_tiles,
    draft,
    kept,
    launch_words,
    linear,
    logprobs,
    sampling,
)
from tspec.kernels.cpu.frame import FRAME_BYTES, start_frame
from tspec.kernels.cpu.pack import STORAGE
from tspec.kernels.cpu.tuned import CpuTable, attention_numbers, product_numbers
from tspec.runtime.memory import address, allocate
from tspec.runtime.weights import PackedWeights

NUMPY_DTYPES = {DType.FLOAT32: np.float32, DType.INT32: np.int32, DType.INT64: np.int64}

NOT_TUNED = CpuTable()

ON_LOGITS = ("edit_logits", "find_kept", "sample", "token_logprobs", "top_tokens", "draw_draft")
ON_FEATURES = ("keep_features", "read_features")


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
    plan: Plan,
    weights: PackedWeights,
    states: Mapping[str, np.ndarray],
    num_threads: int,
    tuned: CpuTable = NOT_TUNED,
) -> BoundPlan:
    """Give `plan` an arena, static inputs and scratch, and write its launches, configured as `tuned` says."""
    arena = allocate(plan.arena_bytes)
    inputs = {
        name: allocate(int(np.prod(shape)) * dtype.itemsize_bytes).view(NUMPY_DTYPES[dtype]).reshape(shape)
        for name, (shape, dtype) in plan.inputs.items()
    }
    buffers = {
        name: arena[buffer.offset_bytes : buffer.offset_bytes + buffer.size_bytes]
        for name, buffer in plan.buffers.items()
    }
    binder = _Binder(plan, weights, {**buffers, **inputs, **weights.memory, **states}, num_threads, tuned)
    launches = np.stack([binder.first(), *(binder.bind(launch) for launch in plan.launches)])
    look_ahead(launches)
    outputs = {name: _typed(plan, name, buffers[name]) for name in plan.outputs}
    return BoundPlan(plan, launches, inputs, outputs, arena, tuple(binder.scratch.values()))


def _typed(plan: Plan, name: str, memory: np.ndarray) -> np.ndarray:
    buffer = plan.buffers[name]
    return memory.view(NUMPY_DTYPES[buffer.dtype]).reshape(buffer.shape)


def look_ahead(launches: np.ndarray) -> None:
    """Tell each launch which weights come next, so that threads that wait for others can fetch them."""
    codes = [launch_words.OPERANDS[kind][0] for kind in ("linear", "linear_silu_mul", "head_sample")]
    product = launch_words.OPERANDS["linear"][1]
    k, storage, weight, panels = (
        product.index(name) + 1 for name in ("k", "storage", "weight", "ahead_panels")
    )
    start = size_bytes = 0
    for launch in launches[::-1]:
        launch[launch_words.AHEAD : launch_words.AHEAD + 2] = start, size_bytes
        if launch[0] in codes:
            one_panel = linear.panel_bytes(launch[storage], launch[k])
            start, size_bytes = launch[weight], launch[panels] * one_panel


def _logits_scratch_bytes(vocab: int) -> int:
    """Bytes a thread that any of the launches over logits needs."""
    return max(
        kept.kept_scratch_bytes(vocab),
        logprobs.logprobs_scratch_bytes(vocab),
        sampling.SAMPLE_SCRATCH_BYTES,
        draft.DRAW_SCRATCH_BYTES,
    )


def _level_width(plan: Plan) -> int:
    """Most nodes of a sequence in a level of the draft's tree that a plan grows."""
    made = (name for launch in plan.launches if launch.row_dim == "W" for name in launch.outputs)
    return max((plan.buffers[name].shape[1] for name in made if name in plan.buffers), default=1)


class _Binder:
    """Knows where every name of one plan lives."""

    def __init__(
        self,
        plan: Plan,
        weights: PackedWeights,
        memory: Mapping[str, np.ndarray],
        num_threads: int,
        tuned: CpuTable,
    ) -> None:
        self.plan = plan
        self.weights = weights
        self.memory = memory
        self.num_threads = num_threads
        self.tuned = tuned
        self.max_blocks = plan.inputs["block_table"][0][1]
        self.scratch: dict[str, np.ndarray] = {}
        self.row_dims = {name: launch.row_dim for launch in plan.launches for name in launch.outputs}
        self.nodes = {"T": plan.bucket.nodes, "1": plan.bucket.nodes}
        self.frames = {"T": self._start_frame("frame", "num_nodes", plan.bucket.nodes)}
        self.frames["1"] = self.frames["T"]
        if "level_nodes" in plan.inputs:
            self.nodes["W"] = _level_width(plan)
            self.frames["W"] = self._start_frame("level_frame", "level_nodes", self.nodes["W"])
        self.rows = plan.bucket.rows * max(self.nodes.values())

    def _start_frame(self, name: str, counts: str, max_nodes: int) -> int:
        """The address of a frame over the sequences of the bucket, of `max_nodes` nodes each."""

        def allocate_map(size_bytes: int) -> int:
            return self._shared(f"{name}.{len(self.scratch)}", size_bytes)

        words = start_frame(allocate_map, address(self.memory[counts]), self.plan.bucket.rows, max_nodes)
        place = self._shared(name, FRAME_BYTES)
        self.scratch[name].view(np.int64)[:] = words
        return place

    def first(self) -> np.ndarray:
        """The launch that numbers the live rows."""
        frames = {"frame": self.frames["T"], "level_frame": self.frames.get("W", 0)}
        return launch_words.bind("index_rows", frames)

    def bind(self, launch: Launch) -> np.ndarray:
        """One launch of the plan as words."""
        if launch.kind not in launch_words.OPERANDS:
            raise ContractError(
                f"launch {launch.number}",
                got=launch.kind,
                need=f"one of {', '.join(launch_words.OPERANDS)}",
                fix="Fuse the graph before lowering it: this op has no CPU kernel of its own.",
            )
        operands: dict[str, Any] = {**self._labels(launch), **self._sizes(launch), **launch.attrs}
        operands["frame"] = self.frames[launch.row_dim]
        operands["space"] = int(launch.row_dim == "1")
        operands["max_nodes"] = self.nodes[launch.row_dim]
        operands["window"] = launch.attrs.get("window") or 0
        return launch_words.bind(launch.kind, operands)

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
        read = [self.plan.weights[str(name)] for name in launch.inputs if name in self.plan.weights]
        weight = next((spec for spec in read if spec.use in ("embed", "matrix", "gate_up")), None)
        if weight is not None:
            return self._weight_sizes(launch, weight)
        if launch.kind in ON_LOGITS:
            vocab = self._shape(launch, "logits")[-1]
            # One piece for all, so that a plan needs no more than the largest.
            scratch, stride = self._scratch("logits", _logits_scratch_bytes(vocab))
            return {"vocab": vocab, "scratch": scratch, "scratch_stride": stride}
        if launch.kind == "accept_ratio":
            return self._acceptance_sizes(launch)
        if launch.kind in ON_FEATURES:
            return self._feature_sizes(launch)
        if any(name in self.plan.states for name in launch.inputs):
            return self._cache_sizes(launch)
        return self._row_sizes(launch)

    def _weight_sizes(self, launch: Launch, weight: WeightSpec) -> dict[str, int]:
        """Sizes and scratch of the launches that read a matrix."""
        rows, cols = weight.shape
        sizes = {"storage": STORAGE[weight.dtype], "k": cols, "cols": cols}
        sizes["n"] = rows // (2 if weight.use == "gate_up" else 1)
        sizes["is_packed"] = int(self.weights.is_packed(weight.name))
        if launch.kind != "embed":
            stride = linear.scratch_bytes(self.rows, cols, launch.kind.startswith("norm_"))
            sizes["scratch"], sizes["scratch_stride"] = self._scratch(f"linear.{stride}", stride)
            sizes["best"] = self._scratch("best", self.rows * linear.BEST_BYTES)[0]
            tuned = self.tuned.for_product(launch.kind, sizes["n"], cols, weight.dtype)
            sizes |= product_numbers(tuned, self.num_threads)
        return sizes

    def _row_sizes(self, launch: Launch) -> dict[str, int]:
        """Sizes of the launches that move rows, or change each by itself."""
        if launch.kind == "expand_tree":
            _, rows, most = self._shape(launch, "tokens")
            return {"num_sequences": self.plan.bucket.rows, "rows": rows, "most": most}
        if launch.kind == "concat":
            return {"cols": self._shape(launch, "a")[-1], "more_cols": self._shape(launch, "b")[-1]}
        sizes = {}
        if launch.kind in ("last_row", "parent_rows", "rms_norm", "silu_add"):
            sizes["cols"] = self._shape(launch, "x")[-1]
        if launch.kind == "parent_rows":
            row_dim = self.row_dims[str(self._names(launch)["x"])]
            sizes["source_frame"] = 0 if row_dim == "1" else self.frames[row_dim]
        return sizes

    def _feature_sizes(self, launch: Launch) -> dict[str, int]:
        """How wide the features are, and the part of them that a launch moves."""
        (_, _, total), _ = self.plan.states[str(self._names(launch)["features"])]
        assert isinstance(total, int), launch
        cols = launch.attrs["width"] if launch.kind == "read_features" else self._shape(launch, "x")[-1]
        return {"max_blocks": self.max_blocks, "total": total, "cols": cols}

    def _acceptance_sizes(self, launch: Launch) -> dict[str, int]:
        """Both vocabularies, and scratch."""
        scratch, stride = self._scratch("accept_ratio", accept_ratio.SCRATCH_BYTES)
        return {
            "vocab": self._shape(launch, "logits")[-1],
            "draft_vocab": self._shape(launch, "draft_logprobs")[-1],
            "scratch": scratch,
            "scratch_stride": stride,
        }

    def _cache_sizes(self, launch: Launch) -> dict[str, int]:
        """Sizes and scratch of the launches that touch the KV cache."""
        caches = [str(name) for name in launch.inputs if name in self.plan.states]
        (_, num_kv_heads, _, head_dim), dtype = self.plan.states[caches[0]]
        assert isinstance(num_kv_heads, int) and isinstance(head_dim, int), caches
        sizes = {"storage": STORAGE[dtype], "head_dim": head_dim, "num_kv_heads": num_kv_heads}
        sizes["max_blocks"] = self.max_blocks
        if launch.kind == "rope_attention":
            num_heads = launch.attrs["num_heads"]
            partials = attention.partial_bytes(num_heads, head_dim, self.rows, self.max_blocks)
            sizes["partials"] = self._shared("partials", partials)
            stride = attention_tiles.scratch_bytes(head_dim)
            sizes["scratch"], sizes["scratch_stride"] = self._scratch("attention", stride)
            sizes |= attention_numbers(self.tuned.for_attention(num_heads, num_kv_heads, head_dim, dtype))
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

    def _names(self, launch: Launch) -> dict[str, str | None]:
        """Names of a launch's inputs, by what its signature calls them."""
        labels = [label.name for label in SIGNATURES[launch.kind].inputs]
        return dict(zip(labels, launch.inputs, strict=True))

    def _shape(self, launch: Launch, label: str) -> tuple[int, ...]:
        """The shape of an input that is a buffer, or one that the host fills."""
        name = str(self._names(launch)[label])
        return self.plan.buffers[name].shape if name in self.plan.buffers else self.plan.inputs[name][0]

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
