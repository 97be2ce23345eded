"""Clocks of a device, its measured bandwidth, and launches recorded for replay. On the CPU the same by wall clock."""

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

GROUPS = 7
"""Timings of which the median is taken."""

LARGE_BYTES, SMALL_BYTES = 2 << 30, 1 << 20
"""What bandwidth is measured on: far more than any cache, and what a test waits for."""


def median_us(call: Callable[[], object], device: torch.device, calls: int = 10) -> float:
    """Microseconds of one call on the device: the median of groups of `calls` queued back to back."""
    if device.type != "cuda":
        return wall_us(call, device, calls=1)
    for _ in range(3):
        call()
    pairs = []
    for _ in range(GROUPS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "12")
        start.record()
        for _ in range(calls):
            call()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize(device)
    return statistics.median(1e3 * start.elapsed_time(end) / calls for start, end in pairs)


def wall_us(call: Callable[[], object], device: torch.device, calls: int = 10) -> float:
    """Microseconds of one call by the host's clock, the device waited for at the end of each group."""
    seconds = []
    for _ in range(GROUPS if device.type == "cuda" else 1):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append((time.perf_counter() - start) / calls)
    return 1e6 * statistics.median(seconds)


def record(launches: Sequence[Callable[[], None]], device: torch.device) -> Callable[[], None]:
    """Capture `launches` into a graph of their own and return its replay; on the CPU, what runs them."""

    def run() -> None:
        for launch in launches:
            launch()

    if device.type != "cuda":
        return run
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        run()  # compiles and loads kernels
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph.replay


def bandwidth(device: torch.device) -> dict[str, float]:
    """GB/s that a large copy (bytes read and written) and a large read reach; the best is the roofline's."""
    size = LARGE_BYTES if device.type == "cuda" else SMALL_BYTES
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copy_us = median_us(lambda: target.copy_(source), device)
    read_us = median_us(source.max, device)
    figures = {"copy_gb_s": 2 * size / copy_us / 1e3, "read_gb_s": size / read_us / 1e3}
    return figures | {"best_gb_s": max(figures.values())}


def kernel_gaps(replay: Callable[[], None], device: torch.device) -> dict[str, object]:
    """Kernels of one replay as the profiler sees them: how many, their time, and the mean gap between two.

    None on the CPU, and where the profiler sees no kernels.
    """
    if device.type != "cuda":
        return {"skipped": "no CUDA device"}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    replay()
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=activities) as profile:
        replay()
        torch.cuda.synchronize(device)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    if len(spans) < 2:
        return {"skipped": "the profiler saw no kernels"}
    gaps = [after[0] - before[1] for before, after in pairwise(spans)]
    return {
        "kernels": len(spans),
        "kernels_us": sum(end - start for start, end in spans),
        "mean_gap_us": statistics.mean(gaps),
        "median_gap_us": statistics.median(gaps),
    }
