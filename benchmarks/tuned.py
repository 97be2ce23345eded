"""What `tspec autotune kernels` gained: passes with default and with tuned kernels, in turn, by nodes.

Both run on the same weights, threads and KV memory in one process; the bits of their tokens are the same. What was
tuned is read from the user's file (TSPEC_TUNED_DIR). Medians, and of the ratio the median of that of each round;
beside it the ratio of the tenth percentiles.

Run: python -m benchmarks.tuned [CHECKPOINT] [--rounds N]
"""

import argparse
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import cpu_name
from tspec.build import BuildOptions, build_engine, plan_maker
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.core.shapes import blocks_for
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES, chain
from tspec.kernels.cpu.store import read_table
from tspec.kernels.cpu.tuned import CpuTable
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.executor import CpuExecutor
from tspec.runtime.inputs import PassInputs

NODES = (1, 8)
CONTEXT, MAX_MODEL_LEN = 128, 512

QUIET_PERCENTILE = 10
"""Of the times of each: what a machine with other work gives in its quiet moments."""


class Contestants:
    """One model's executor with the defaults, and one with what was tuned."""

    def __init__(self, folder: Path) -> None:
        options = BuildOptions(max_model_len=MAX_MODEL_LEN, max_num_seqs=1)
        self.engine = build_engine(folder, SpeculativeConfig(method="none"), options)
        tuned = self.engine.executor
        assert isinstance(tuned, CpuExecutor), tuned
        self.num_entries = sum(map(len, (tuned.tuned.products, tuned.tuned.attention)))
        assert tuned.tuned == read_table(tuned.threads.num_threads)
        make_plan = plan_maker(self.engine.config, MAX_MODEL_LEN)
        default = CpuExecutor(
            make_plan, tuned.weights, tuned.num_blocks, tuned.threads, tuned.states, CpuTable()
        )
        self.executors = {"default": default, "tuned": tuned}
        self._tokens = np.random.default_rng(0).integers(0, self.engine.config.vocab_size, MAX_MODEL_LEN)
        self._table = np.arange(blocks_for(MAX_MODEL_LEN), dtype=np.int32)[None]
        for start in range(0, CONTEXT, MAX_NODES):
            self.run("tuned", start, MAX_NODES)

    def run(self, name: str, context: int, nodes: int) -> tuple[float, dict[str, bytes]]:
        """Seconds of one verify pass over a chain of `nodes`, and what the host reads of it."""
        inputs = PassInputs(
            chain(self._tokens[context : context + nodes]), np.array([context], np.int32), self._table
        )
        start = time.perf_counter()
        outputs = self.executors[name].run("all", smallest_bucket(1, nodes), inputs)
        seconds = time.perf_counter() - start
        return seconds, {name: array.tobytes() for name, array in outputs.items()}


def measure(folder: Path, rounds: int) -> tuple[int, dict[int, dict[str, float]]]:
    """Entries that were used, and by nodes the medians in ms and the median ratio of a round."""
    contestants = Contestants(folder)
    names = list(contestants.executors)
    seconds: dict[tuple[int, str], list[float]] = {(nodes, name): [] for nodes in NODES for name in names}
    for number in range(rounds + 1):
        for nodes in NODES:
            found = {
                name: contestants.run(name, CONTEXT, nodes) for name in (names if number % 2 else names[::-1])
            }
            assert found["default"][1] == found["tuned"][1], "no token may follow a configuration"
            if number:  # the first binds and warms up
                for name in names:
                    seconds[nodes, name].append(found[name][0])
    contestants.engine.close()
    figures = {}
    for nodes in NODES:
        ratios = np.divide(seconds[nodes, "tuned"], seconds[nodes, "default"])
        figures[nodes] = {name: 1e3 * float(np.median(seconds[nodes, name])) for name in names}
        figures[nodes]["ratio"] = float(np.median(ratios))
        least = {name: np.percentile(seconds[nodes, name], QUIET_PERCENTILE) for name in names}
        figures[nodes]["quiet_ratio"] = float(least["tuned"] / least["default"])
    return contestants.num_entries, figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=101)
    args = parser.parse_args()
    console = Console()
    console.print(cpu_name())
    num_entries, figures = measure(args.checkpoint or ensure_demo_model(), args.rounds)
    columns = ("pass", "default", "tuned", "tuned over default", "in quiet moments")
    table = Table(*columns, title=f"{num_entries} tuned entries")
    for nodes, each in figures.items():
        label = "plain decoding" if nodes == 1 else f"{nodes} nodes"
        times = (f"{each[name]:.2f} ms" for name in ("default", "tuned"))
        table.add_row(label, *times, f"{each['ratio']:.3f}", f"{each['quiet_ratio']:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
