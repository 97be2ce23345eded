"""What machines sustain, for predictions: memory, arithmetic, launches, and links between several of one kind.

Vendors state peaks; of those a large copy reaches about nine tenths and a large dense product about four fifths, which
is what `graph/roofline.py` takes for H200 (4,300 GB/s, 790 TFLOPS) and A100 (1,700 GB/s, 250 TFLOPS), too.
"""

import math
from dataclasses import dataclass

from tspec.core.errors import ConfigError
from tspec.graph.plan import Launch

BANDWIDTH_SHARE, FLOPS_SHARE = 0.9, 0.8
"""Of the stated peaks."""
LAUNCH_US = 1.3
"""Between two kernels of a CUDA graph on an H100, as other engines publish it; taken for all devices."""
REDUCE_US = 8.0
"""An all-reduce of a few KiB within a node, in one step over its links: assumed."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One device, or `count` that share each matrix (tensor parallelism).

    bandwidth_gb_s, peak_tflops   sustained, for weights and products in bfloat16
    memory_gb                     of one
    launch_us                     from the end of one launch to the start of the next
    link_gb_s                     from one device to the others, one way
    overlap                       how far reading and computing hide each other: time is (read^n + compute^n)^(1/n);
                                  infinite where copies run by themselves
    """

    name: str
    bandwidth_gb_s: float
    peak_tflops: float
    memory_gb: float
    launch_us: float = LAUNCH_US
    link_gb_s: float = 0.0
    count: int = 1
    overlap: float = math.inf

    def launch_time_us(self, launch: Launch) -> float:
        """Microseconds of one launch, the gap before it included."""
        read_us = launch.bytes_moved / self.bandwidth_gb_s / 1e3
        compute_us = launch.flops / self.peak_tflops / 1e6
        if math.isinf(self.overlap):
            return self.launch_us + max(read_us, compute_us)
        return self.launch_us + math.hypot(
            read_us ** (self.overlap / 2), compute_us ** (self.overlap / 2)
        ) ** (2 / self.overlap)

    def reduce_us(self, size_bytes: int) -> float:
        """Microseconds until all devices have the sum of their parts: each sends and gets 2 (n - 1) / n of it."""
        if self.count == 1:
            return 0.0
        return REDUCE_US + 2 * (self.count - 1) / self.count * size_bytes / self.link_gb_s / 1e3


def _stated(name: str, gb_s: float, tflops: float, memory_gb: float, link_gb_s: float) -> Machine:
    bandwidth, flops = BANDWIDTH_SHARE * gb_s, FLOPS_SHARE * tflops
    return Machine(name, bandwidth, flops, memory_gb, link_gb_s=link_gb_s)


MACHINES = {
    each.name: each
    for each in (
        # NVIDIA A100 80 GB SXM datasheet: 2,039 GB/s, 312 TFLOPS dense bf16, NVLink 3 600 GB/s both ways
        _stated("a100", 2039, 312, 80, 300),
        # NVIDIA H100 SXM datasheet: 3.35 TB/s, 1,979 TFLOPS bf16 with sparsity, NVLink 4 900 GB/s both ways
        _stated("h100", 3350, 989.5, 80, 450),
        # NVIDIA H200 SXM datasheet: 141 GB, 4.8 TB/s; else an H100
        _stated("h200", 4800, 989.5, 141, 450),
        # NVIDIA DGX B200 datasheet, an eighth of it: 8 TB/s, 2.25 PFLOPS dense bf16, NVLink 5 1.8 TB/s both ways
        _stated("b200", 8000, 2250, 180, 900),
        # AMD Instinct MI300X datasheet: 5.3 TB/s, 1,307 TFLOPS dense bf16, seven links of 128 GB/s both ways
        _stated("mi300x", 5300, 1307, 192, 448),
    )
}
"""By name. The CPU at hand is measured: `measured_cpu`."""

CPU_LAUNCH_US = 5.0
"""A barrier of a few threads, and the end of a launch in which one of them still works."""


def find_machine(name: str, count: int) -> Machine:
    """A device by name, `count` of it.  Errors: ConfigError for a name that is not in the table"""
    if name not in MACHINES:
        need = f"cpu, or one of {', '.join(MACHINES)}"
        raise ConfigError("--device", got=repr(name), need=need, fix="Pick one of them.")
    one = MACHINES[name]
    return Machine(
        one.name, one.bandwidth_gb_s, one.peak_tflops, one.memory_gb, one.launch_us, one.link_gb_s, count
    )


def measured_cpu(read_gb_s: float, tflops: float) -> Machine:
    """This CPU, from what it reads and multiplies. Its loads and products take turns in part: see `overlap`."""
    return Machine("cpu", read_gb_s, tflops, math.inf, CPU_LAUNCH_US, overlap=2.0)
