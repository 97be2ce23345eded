"""What acceptance costs: choosing a token after each of 8 nodes and walking the tree, as shares of the verify pass.

The passes run over real text. Their parts are run again by themselves, on what the pass left in memory: the launches
between the logits and the verdict; and the head with an inner size of 2 instead of the model's, so that next to
nothing is left of it but what it does with its outputs. All are timed in turns, the passes beside their parts.

Run: python -m benchmarks.acceptance [CHECKPOINT] [--rounds 41] [--json FILE]
"""

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine_line
from benchmarks.prompts import read_questions
from tspec.build import BuildOptions, build_engine
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.core.sampling import DRAWN_CHAIN
from tspec.core.shapes import blocks_for
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES, chain
from tspec.graph.plan import Bucket
from tspec.kernels.cpu.launch_words import OPERANDS
from tspec.runtime.executor import CpuExecutor
from tspec.runtime.inputs import PassInputs
from tspec.tokenizer import load_codec

NODES = 8
MAX_MODEL_LEN = 512
CONTEXT = 256

ASKED = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "top-k 50, top-p 0.9": {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    "top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "drawn, temperature 1": {"temperature": 1.0, "is_drawn": 1},
    "drawn, top-k 50, top-p 0.9": {"temperature": 1.0, "top_k": 50, "top_p": 0.9, "is_drawn": 1},
}
"""What the request of a pass asks for. Those with a filter write their logits; the others choose within the head. Drawn
candidates are accepted by ratio, as a block, from a law over the whole vocabulary."""

KEEP_ALL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "num_logprobs": -1, "seed": 7}
HEADS, ON_LOGITS = ("norm_head_sample", "norm_head_logits"), ("find_kept", "sample")
WALK = ("accept_match", "accept_ratio")


class AcceptanceTimer:
    """Times passes of one sequence, and parts of them."""

    def __init__(self, folder: Path) -> None:
        options = BuildOptions(max_model_len=MAX_MODEL_LEN, max_num_seqs=1)
        self.engine = build_engine(folder, SpeculativeConfig(method="none"), options)
        assert isinstance(self.engine.executor, CpuExecutor)
        self._executor = self.engine.executor
        text = " ".join(question.prompt for question in read_questions(per_category=2))
        self._tokens = load_codec(folder, self.engine.config.vocab_size).encode(text)
        self._table = np.arange(blocks_for(MAX_MODEL_LEN), dtype=np.int32)[None]
        for start in range(0, CONTEXT, MAX_NODES):
            self._run("none", start, MAX_NODES, {})
        self._run("ratio_filtered", CONTEXT, NODES, self._draft())

    def _draft(self) -> dict[str, np.ndarray]:
        """Candidates as if they had been drawn; the static inputs keep it."""
        logits = np.random.default_rng(0).normal(0, 3, (1, NODES, self.engine.config.vocab_size))
        laws = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        is_sampled = np.full((1, NODES), DRAWN_CHAIN, dtype=np.int32)
        return {"is_sampled": is_sampled, "draft_logprobs": laws.astype(np.float32)}

    def _run(self, kind: str, start: int, nodes: int, requests: Mapping[str, np.ndarray]) -> None:
        trees = chain(np.array(self._tokens[start : start + nodes], np.int32))
        inputs = PassInputs(trees, np.array([start], np.int32), self._table, requests)
        self._executor.run(kind, Bucket(1, nodes), inputs)

    def kind(self, asked: Mapping[str, float]) -> str:
        """The kind of pass that honours a request."""
        if "is_drawn" in asked:
            return "ratio_filtered"
        return "all_filtered" if asked.keys() & {"top_k", "top_p"} else "all"

    def pass_s(self, asked: Mapping[str, float]) -> float:
        """Seconds of one verify pass."""
        requests = {name: np.array([value]) for name, value in (KEEP_ALL | dict(asked)).items()}
        start = time.perf_counter()
        self._run(self.kind(asked), CONTEXT, NODES, requests)
        return time.perf_counter() - start

    def part_s(self, asked: Mapping[str, float], kinds: tuple[str, ...], is_shallow: bool = False) -> float:
        """Seconds of some launches of the pass that has just run. Shallow: with an inner size of 2."""
        bound = self._executor.prepare(self.kind(asked), Bucket(1, NODES))
        numbers = [launch.number + 1 for launch in bound.plan.launches if launch.kind in kinds]
        launches = bound.launches[[0, *numbers]].copy()
        if is_shallow:
            launches[1, 1 + OPERANDS["linear"][1].index("k")] = 2
        start = time.perf_counter()
        self._executor.threads.run(launches)
        return time.perf_counter() - start

    def acceptance_s(self, asked: Mapping[str, float]) -> float:
        """Seconds from products to the verdict. Leaves no logits behind."""
        if self.kind(asked) == "all":
            return self.part_s(asked, HEADS, is_shallow=True) + self.part_s(asked, WALK)
        return self.part_s(asked, (*ON_LOGITS, *WALK)) + self.part_s(asked, HEADS, is_shallow=True)


def measure(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Medians over `rounds`, in each of which every request runs once."""
    timer = AcceptanceTimer(folder)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ASKED}
    for turn in range(rounds + 1):
        for name, asked in ASKED.items():
            pair = timer.pass_s(asked), timer.acceptance_s(asked)
            if turn > 0:  # the first binds and warms
                seconds[name].append(pair)
    timer.engine.close()
    medians = {name: np.median(pairs, axis=0) for name, pairs in seconds.items()}
    return {
        name: {
            "pass_ms": 1e3 * float(whole),
            "acceptance_ms": 1e3 * float(part),
            "share": float(part / whole),
            "over_greedy": float(whole / medians["greedy"][0]),
        }
        for name, (whole, part) in medians.items()
    }


def show(figures: dict[str, dict[str, float]], console: Console) -> None:
    """Print the figures of `measure`."""
    table = Table(
        "request", "acceptance", "of the pass", "pass over greedy", title=f"verify pass of {NODES} nodes"
    )
    for name, row in figures.items():
        table.add_row(
            name, f"{row['acceptance_ms']:.2f} ms", f"{row['share']:.1%}", f"{row['over_greedy']:.3f}x"
        )
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    folder, console = args.checkpoint or ensure_demo_model(), Console()
    console.print(machine_line())
    figures = measure(folder, args.rounds)
    show(figures, console)
    if args.json:
        args.json.write_text(
            json.dumps({"machine": machine_line(), "model": folder.name, **figures}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
