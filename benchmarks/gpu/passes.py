"""What a verify pass costs on the device: by bucket, by kernel, against the roofline of the same run, with PDL."""

import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu.models import RandomModel, random_chains
from benchmarks.gpu.timing import kernel_gaps, median_us, record, wall_us
from tspec.graph.plan import Bucket, Launch, Plan
from tspec.runtime.cuda_bind import DevicePlan

CONTEXT = 1024
"""Committed tokens of each row."""

NODES, ROWS = (1, 4, 8, 16, 64), (1, 2, 4, 8)
DETAILED = (Bucket(1, 1), Bucket(1, 16), Bucket(8, 64))
"""Buckets whose kernels are timed one kind at a time; those of one sequence run with PDL, too."""

TWICE = ("norm_head_sample", "head_sample", "sample", "draw_draft")
"""Kinds of launches that are two kernels."""

UNREAD = ("embed", "derived")
"""Weights of which a pass reads a few rows."""


def buckets(is_quick: bool) -> list[Bucket]:
    """The buckets to measure, those of one sequence first."""
    rows, nodes = ((1, 8), (1, 16, 64)) if is_quick else (ROWS, NODES)
    return [Bucket(row, count) for row in rows for count in nodes]


def roofline_bytes(model: RandomModel, plan: Plan, context: int) -> int:
    """Bytes that no pass can avoid: the weights once, and the keys and values of every row's context."""
    weights = model.model.weights
    read = sum(
        weights[name].numel() * weights[name].element_size()
        for name, spec in plan.weights.items()
        if spec.use not in UNREAD
    )
    return read + plan.bucket.rows * context * model.kv_bytes_a_token


def measure_bucket(
    model: RandomModel, bucket: Bucket, gb_s: float, context: int = CONTEXT
) -> dict[str, object]:
    """Capture a bucket as the engine does, run it once, then time its replay and a whole step."""
    executor, device = model.executor, model.device
    start = time.perf_counter()
    executor.capture([("all", bucket)])
    capture_s = time.perf_counter() - start
    inputs = model.inputs(random_chains(model.config, *_size(bucket)), [context] * bucket.rows)
    executor.run("all", bucket, inputs)
    bound = executor.bind("all", bucket)
    replay_us = median_us(record(bound.launches, device), device)
    floor_us = roofline_bytes(model, bound.plan, context) / gb_s / 1e3
    figures: dict[str, object] = {
        "capture_s": capture_s,
        "bucket_mib": bound.size_bytes / (1 << 20),
        "launches": count_launches(bound.plan),
        "replay_us": replay_us,
        "step_us": wall_us(
            lambda: executor.run("all", bucket, inputs), device, calls=10 if _is_cuda(device) else 1
        ),
        "roofline_us": floor_us,
        "share_of_roofline": floor_us / replay_us,
    }
    if bucket in DETAILED:
        figures["gaps"] = attempt(kernel_gaps, record(bound.launches, device), device)
        figures["kernels"] = measure_kernels(model, bound, gb_s, context)
        is_narrow = bucket.rows == 1
        figures["pdl"] = (
            attempt(measure_pdl, bound, device) if is_narrow else {"skipped": "one sequence only"}
        )
    return figures


def measure_kernels(model: RandomModel, bound: DevicePlan, gb_s: float, context: int) -> dict[str, object]:
    """Time of each kind of launch: all its launches of a pass, in order, in a graph of their own."""
    kinds: dict[str, list[int]] = {}
    for launch in bound.plan.launches:
        kinds.setdefault(launch.kind, []).append(launch.number)
    figures: dict[str, object] = {}
    for kind, numbers in kinds.items():
        time_us = median_us(
            record([bound.launches[number] for number in numbers], model.device), model.device
        )
        moved = sum(_moved(model, bound.plan, bound.plan.launches[number], context) for number in numbers)
        figures[kind] = {
            "launches": len(numbers),
            "us_a_launch": time_us / len(numbers),
            "us_a_pass": time_us,
            "mib_a_pass": moved / (1 << 20),
            "gb_s": moved / time_us / 1e3,
            "share_of_roofline": moved / time_us / 1e3 / gb_s,
        }
    return figures


def measure_pdl(bound: DevicePlan, device: torch.device) -> dict[str, object]:
    """The pass without and with programmatic dependent launch of all its kernels, and whether its bits are equal."""
    if not _is_cuda(device) or torch.cuda.get_device_capability(device)[0] < 9:
        return {"skipped": "needs a CUDA device of compute capability 9.0"}
    times_us, outputs = [], []
    for launch_pdl in (False, True):
        launches = [partial(launch, launch_pdl=launch_pdl) for launch in bound.launches]
        times_us.append(median_us(record(launches, device), device))
        torch.cuda.synchronize(device)
        outputs.append(bound.outputs.device.clone())
    return {
        "off_us": times_us[0],
        "on_us": times_us[1],
        "gain": times_us[0] / times_us[1] - 1,
        "same_outputs": bool(torch.equal(*outputs)),
    }


def attempt(measure: Callable[..., dict[str, object]], *args: object) -> dict[str, object]:
    """The figures of `measure`, or why there are none: what else was measured stays."""
    try:
        return measure(*args)
    except Exception as error:
        return {"skipped": f"{type(error).__name__}: {error}"}


def count_launches(plan: Plan) -> int:
    """Kernels of a pass."""
    return len(plan.launches) + sum(launch.kind in TWICE for launch in plan.launches)


def _moved(model: RandomModel, plan: Plan, launch: Launch, context: int) -> int:
    """Bytes of a launch; plans count none of the context."""
    if launch.kind != "rope_attention":
        return launch.bytes_moved
    return launch.bytes_moved + plan.bucket.rows * context * model.kv_bytes_a_token // model.config.num_layers


def _size(bucket: Bucket) -> tuple[int, int]:
    return bucket.rows, bucket.nodes


def _is_cuda(device: torch.device) -> bool:
    return device.type == "cuda"
