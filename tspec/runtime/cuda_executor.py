"""The cuda executor: plans bound on the device, each captured into a CUDA graph and replayed.

On another device than CUDA (the interpreter's) the same launches run one by one.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from tspec.core.errors import CaptureError, ConfigError
from tspec.graph.plan import Bucket
from tspec.kernels.cuda.store import read_table
from tspec.kernels.cuda.tuned import TunedTable, architecture_of, can_launch_early
from tspec.runtime.cuda_bind import LIVE_NODES, DeviceModel, DevicePlan, bind_device_plan
from tspec.runtime.device_memory import SharedMemory
from tspec.runtime.inputs import PassInputs, PlanMaker, fill_inputs

_log = logging.getLogger("tspec")

MIB = 1 << 20

WARM_UP_PASSES = 2
"""Passes before a capture: the first compiles and loads kernels, which no capture survives."""


def find_device() -> tuple[torch.device, str, int]:
    """Return the current CUDA device, its architecture as "sm_90" or "gfx942", and its free bytes.

    Errors    ConfigError where torch sees no CUDA device, or one that no kernel is compiled for
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            "device", got="no CUDA device", need="one that torch can use", fix="Use device='cpu'."
        )
    device = torch.device("cuda", torch.cuda.current_device())
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    if torch.version.hip:
        arch = torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
    architecture_of(arch)
    return device, arch, torch.cuda.mem_get_info(device)[0]


def device_model(
    device: torch.device,
    arch: str,
    weights: Mapping[str, torch.Tensor],
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    features: torch.Tensor | None = None,
) -> DeviceModel:
    """What the buckets of a model share on a CUDA device, with what tuning found for it, read here once.

    Launches start before the one before them ends where the part can do that. In a capture the edge between two such
    kernels becomes a programmatic one; the first has no kernel before it, and starts when the replay does.
    """
    table = read_table(torch.cuda.get_device_name(device), arch)
    return DeviceModel(device, arch, weights, k_cache, v_cache, table, can_launch_early(arch), features)


class CudaExecutor:
    """Runs passes on a device. Captures share one pool of memory; a step copies in once, replays, copies out once."""

    def __init__(self, make_plan: PlanMaker, model: DeviceModel) -> None:
        self._make_plan = make_plan
        self._model = model
        self._bound: dict[tuple[str, Bucket], DevicePlan] = {}
        self._graphs: dict[tuple[str, Bucket], torch.cuda.CUDAGraph] = {}
        self._memory = SharedMemory(model.device)
        self._pool = torch.cuda.graph_pool_handle() if model.device.type == "cuda" else None
        self.num_blocks = model.k_cache.shape[1]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on the device."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._model.weights.values())

    def bind(self, kind: str, bucket: Bucket) -> DevicePlan:
        """Return the bound plan of a kind of pass (models.PASS_KINDS) and bucket, not captured yet."""
        key = kind, bucket
        if key not in self._bound:
            self._bound[key] = bind_device_plan(self._make_plan(kind, bucket), self._model, self._memory)
        return self._bound[key]

    def bind_with(self, kind: str, bucket: Bucket, tuned: TunedTable, inputs: PassInputs) -> DevicePlan:
        """Bind a pass with other configurations, its inputs on the device. Its memory is its own; it is not kept."""
        model = replace(self._model, tuned=tuned)
        bound = bind_device_plan(self._make_plan(kind, bucket), model, SharedMemory(model.device))
        fill_inputs(bound.inputs.arrays, bucket, inputs)
        bound.inputs.to_device()
        return bound

    def capture(self, kinds_and_buckets: Sequence[tuple[str, Bucket]]) -> int:
        """Capture the given passes, the largest first, so that the smaller ones find its memory free.

        Where one does not fit in the device's memory, all buckets of so many rows are given up, which is logged.
        Returns   the most rows that are left
        Errors    CaptureError where not even the bucket of the fewest rows fits
        """
        sizes = sorted({bucket.rows for _, bucket in kinds_and_buckets})
        for kind, bucket in sorted(kinds_and_buckets, key=lambda each: -each[1].rows * each[1].nodes):
            if bucket.rows > sizes[-1]:
                continue
            try:
                self._capture(kind, bucket)
            except torch.OutOfMemoryError as error:
                smaller = [rows for rows in sizes if rows < bucket.rows]
                if not smaller:
                    raise _does_not_fit(kind, bucket) from error
                sizes = smaller
                self._forget_beyond(sizes[-1])
                _log.warning(
                    "Bucket %s of pass %s does not fit in device memory: at most %d sequences a pass.",
                    bucket,
                    kind,
                    sizes[-1],
                )
        return sizes[-1]

    def run(self, kind: str, bucket: Bucket, inputs: PassInputs) -> Mapping[str, np.ndarray]:
        """Run one pass; the result is views of pinned memory, valid until the next pass of this kind and bucket."""
        bound = self.bind(kind, bucket)
        fill_inputs(bound.inputs.arrays, bucket, inputs)
        self._run(kind, bucket, bound)
        return bound.outputs.arrays

    def report(self) -> str:
        """Device memory that each bucket uses, one line each, and what they have in common."""
        lines = [
            f"{kind:<14} {bucket!s:>6} {bound.size_bytes / MIB:10.2f} MiB"
            for (kind, bucket), bound in self._bound.items()
        ]
        return "\n".join((*lines, f"{'shared by all':<21} {self._memory.size_bytes / MIB:10.2f} MiB"))

    def close(self) -> None:
        """Forget all plans and graphs; their memory goes back with them."""
        self._graphs.clear()
        self._bound.clear()

    def _run(self, kind: str, bucket: Bucket, bound: DevicePlan) -> None:
        bound.inputs.to_device()
        if self._pool is None:
            bound.launch()
        else:
            if (kind, bucket) not in self._graphs:
                self._capture_in_a_step(kind, bucket)
            self._graphs[kind, bucket].replay()
        bound.outputs.to_host()
        if self._pool is not None:
            torch.cuda.current_stream(self._model.device).synchronize()

    def _capture_in_a_step(self, kind: str, bucket: Bucket) -> None:
        try:
            self._capture(kind, bucket)
        except torch.OutOfMemoryError as error:
            raise _does_not_fit(kind, bucket) from error

    def _forget_beyond(self, rows: int) -> None:
        """Give the memory of all larger buckets back, but for what they share with those that stay."""
        for passes in (self._graphs, self._bound):
            for key in [key for key in passes if key[1].rows > rows]:
                del passes[key]
        if self._pool is not None:
            torch.cuda.empty_cache()

    def _capture(self, kind: str, bucket: Bucket) -> None:
        bound = self.bind(kind, bucket)
        if self._pool is None:
            return
        counts = [name for name in LIVE_NODES.values() if name in bound.inputs.tensors]
        for name in counts:
            bound.inputs.tensors[name].zero_()  # passes of no sequences: they write no KV
        stream = torch.cuda.Stream(self._model.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._model.device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_PASSES):
                bound.launch()
            stream.synchronize()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                bound.launch()
        torch.cuda.current_stream(self._model.device).wait_stream(stream)
        for name in counts:
            bound.inputs.tensors[name].copy_(torch.from_numpy(bound.inputs.arrays[name]))
        self._graphs[kind, bucket] = graph


def _does_not_fit(kind: str, bucket: Bucket) -> CaptureError:
    return CaptureError(
        f"bucket {bucket} of pass {kind}",
        got="out of device memory",
        need="room for its arena and scratch",
        fix="Lower max_num_seqs, max_model_len or kv_cache_mib.",
    )
