"""How long a verify pass takes: by nodes (chains), at a short and at a long context.

Run: python -m benchmarks.passes [CHECKPOINT]
"""

import argparse
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import BandwidthProbe, cpu_name
from tspec.build import BuildOptions, build_engine
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.core.shapes import blocks_for
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES, CandidateTrees, chain
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.inputs import PassInputs
from tspec.runtime.loop import Engine

NODES = (1, 2, 4, 6, 8, 16)
CONTEXTS = (32, 770)
MAX_MODEL_LEN = 2048


class PassTimer:
    """Times verify passes of one sequence over random tokens."""

    def __init__(self, folder: Path) -> None:
        options = BuildOptions(max_model_len=MAX_MODEL_LEN, max_num_seqs=1)
        self.engine: Engine = build_engine(folder, SpeculativeConfig(method="none"), options)
        self._tokens = np.random.default_rng(0).integers(0, self.engine.config.vocab_size, MAX_MODEL_LEN)
        self._table = np.arange(blocks_for(MAX_MODEL_LEN), dtype=np.int32)[None]
        for start in range(0, max(CONTEXTS) + MAX_NODES, MAX_NODES):
            self.pass_s(start, MAX_NODES)

    @property
    def weight_bytes(self) -> int:
        """Bytes that a pass has to read of the weights."""
        return self.engine.executor.weight_bytes

    def pass_s(self, context: int, nodes: int) -> float:
        """Seconds of one verify pass over a chain of `nodes` behind `context` committed tokens."""
        trees: CandidateTrees = chain(self._tokens[context : context + nodes])
        inputs = PassInputs(trees, np.array([context], dtype=np.int32), self._table)
        start = time.perf_counter()
        self.engine.executor.run("all", smallest_bucket(1, nodes), inputs)
        return time.perf_counter() - start


def measure(folder: Path, rounds: int) -> dict[str, object]:
    """Medians over `rounds`, in each of which every case runs once."""
    timer, probe = PassTimer(folder), BandwidthProbe()
    cases = [(context, nodes) for context in CONTEXTS for nodes in NODES]
    for case in cases:
        timer.pass_s(*case)
    seconds: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
    bandwidth = []
    for _ in range(rounds):
        bandwidth.append(probe.read_gb_s())
        for case in cases:
            seconds[case].append(timer.pass_s(*case))
    medians = {case: float(np.median(each)) for case, each in seconds.items()}
    one = medians[CONTEXTS[0], 1]
    read = float(np.median(bandwidth))
    timer.engine.close()
    return {
        "read_gb_s": read,
        "weight_bytes": timer.weight_bytes,
        "pass_ms": {
            f"{context} tokens, {nodes} nodes": 1e3 * medians[context, nodes] for context, nodes in cases
        },
        "pass_cost": {
            str(context): {str(nodes): medians[context, nodes] / medians[context, 1] for nodes in NODES}
            for context in CONTEXTS
        },
        "share_of_read_bandwidth": timer.weight_bytes / one / 1e9 / read,
        "long_over_short_context": medians[CONTEXTS[1], 1] / one,
    }


def show(figures: dict[str, object], console: Console) -> None:
    """Print the figures of `measure`."""
    table = Table("context", *(f"{nodes} nodes" for nodes in NODES), title="verify pass, over one node")
    cost = figures["pass_cost"]
    assert isinstance(cost, dict)
    for context in CONTEXTS:
        table.add_row(str(context), *(f"{cost[str(context)][str(nodes)]:.2f}x" for nodes in NODES))
    console.print(table)
    console.print(f"read bandwidth {figures['read_gb_s']:.1f} GB/s; one node streams weights at", end=" ")
    console.print(f"{figures['share_of_read_bandwidth']:.0%} of it; 770 tokens of context cost", end=" ")
    console.print(f"{figures['long_over_short_context']:.2f}x a short one")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    console = Console()
    console.print(cpu_name())
    show(measure(args.checkpoint or ensure_demo_model(), args.rounds), console)


if __name__ == "__main__":
    main()
