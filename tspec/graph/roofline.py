"""The least time a plan can take on a device: a launch moves its bytes or does its flops, the slower counts.

A bound, not a prediction: launches cost nothing here, and nothing overlaps.
"""

from collections import Counter
from dataclasses import dataclass

from tspec.core.errors import ConfigError
from tspec.graph.plan import Launch, Plan

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """What a device sustains: memory bandwidth as a large copy reaches it, and dense matrix throughput."""

    name: str
    bandwidth_gb_s: float
    peak_tflops: float

    def time_us(self, bytes_moved: int, flops: int) -> float:
        """Return the time that neither the memory nor the arithmetic can beat."""
        return max(bytes_moved / self.bandwidth_gb_s / 1e3, flops / self.peak_tflops / 1e6)


DEVICES = {
    device.name: device
    for device in (
        Device("cpu", bandwidth_gb_s=25.0, peak_tflops=0.15),
        Device("a100", bandwidth_gb_s=1700.0, peak_tflops=250.0),
        Device("h100", bandwidth_gb_s=3000.0, peak_tflops=790.0),
        Device("h200", bandwidth_gb_s=4300.0, peak_tflops=790.0),
    )
}
"""By name, for bf16 weights. "cpu" is a small desktop or a cloud machine; pass a Device for another."""


def find_device(name: str) -> Device:
    """Return the device called `name`.  Errors: ConfigError for a name that is not in the table."""
    if name not in DEVICES:
        need = f"one of {', '.join(DEVICES)}"
        raise ConfigError("device", got=repr(name), need=need, fix="Pick one of them.")
    return DEVICES[name]


def launch_us(launch: Launch, device: Device) -> float:
    """Return the roofline time of one launch in microseconds."""
    return device.time_us(launch.bytes_moved, launch.flops)


def plan_us(plan: Plan, device: Device) -> float:
    """Return the roofline time of a plan in microseconds: the sum over its launches."""
    return sum(launch_us(launch, device) for launch in plan.launches)


def render(plan: Plan, device: Device) -> str:
    """Return a table of the launches with bytes, flops and roofline time, then totals by kind and in all."""
    lines = [f"plan {plan.bucket} on {device.name}", _row("", "kind", "output", "MiB", "Mflop", "us")]
    lines += [
        _cost_row(str(launch.number), launch.kind, launch.outputs[0], [launch], device)
        for launch in plan.launches
    ]
    counts = Counter(launch.kind for launch in plan.launches)
    for kind, count in counts.items():
        launches = [launch for launch in plan.launches if launch.kind == kind]
        lines.append(_cost_row("", kind, f"{count} in all", launches, device))
    lines.append(_cost_row("", "plan", f"{len(plan.launches)} launches", list(plan.launches), device))
    lines.append(f"arena {plan.arena_bytes / MIB:.2f} MiB in {len(plan.buffers)} buffers")
    return "\n".join(lines)


def _cost_row(number: str, kind: str, output: str, launches: list[Launch], device: Device) -> str:
    moved = sum(launch.bytes_moved for launch in launches)
    flops = sum(launch.flops for launch in launches)
    time_us = sum(launch_us(launch, device) for launch in launches)
    return _row(number, kind, output, f"{moved / MIB:.3f}", f"{flops / 1e6:.2f}", f"{time_us:.2f}")


def _row(number: str, kind: str, output: str, moved: str, flops: str, time_us: str) -> str:
    return f"{number:>4}  {kind:<20} {output:<26} {moved:>10} {flops:>12} {time_us:>10}"
