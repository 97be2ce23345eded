"""The machine that a figure was measured on: its CPU, and how fast its memory can be read (autotune/cpu_probe.py)."""

from autotune.cpu_probe import BandwidthProbe, median_of
from tspec.kernels.cpu.host import cpu_model, read_host, usable_cpus

__all__ = ["BandwidthProbe", "cpu_name", "machine_line"]


def cpu_name() -> str:
    """The CPU's own name and the vector width that the kernels use on it."""
    return f"{cpu_model()}, {usable_cpus()} CPUs, {read_host().name}"


def machine_line() -> str:
    """One line: CPU and the median read bandwidth."""
    return f"{cpu_name()}, reads {median_of(BandwidthProbe().read_gb_s):.1f} GB/s"


if __name__ == "__main__":
    print(machine_line())
