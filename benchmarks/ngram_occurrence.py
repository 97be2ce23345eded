"""Which n-gram settings give the most tokens per pass on recorded greedy outputs?

Replays recorded texts through the real proposer: a candidate is accepted while it equals the recorded output,
which is what greedy verification does. Runs no model and measures no time. The first output token comes from
the prompt's own pass and is not counted.

Input: JSON lines, {"category": "coding", "prompt_ids": [1, 2], "output_ids": [3, 4]} each.
Run: python -m benchmarks.ngram_occurrence outputs.jsonl --min 1 2 --max 3 6 --candidates 5 8
"""

import argparse
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tspec.core.proposer import Committed, DraftBatch
from tspec.core.speculative_config import OCCURRENCES, SpeculativeConfig
from tspec.core.tree import MAX_NODES
from tspec.proposers.ngram import NgramProposer

ALL = "all"
GROWTH = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Recording:
    """One text that the target said, greedily."""

    category: str
    prompt: list[int]
    output: list[int]


@dataclass(slots=True)
class Count:
    """Verify passes, the tokens they emitted, and the candidates they judged."""

    num_passes: int = 0
    num_emitted: int = 0
    num_candidates: int = 0

    def add(self, other: "Count") -> None:
        """Add another count to this one."""
        self.num_passes += other.num_passes
        self.num_emitted += other.num_emitted
        self.num_candidates += other.num_candidates

    def per_pass(self, total: int) -> str:
        """`total` a pass, as shown in the table; a dash when nothing ran."""
        return f"{total / self.num_passes:.2f}" if self.num_passes else "-"


@dataclass(slots=True)
class Result:
    """What one setting gave, by category and over all texts."""

    config: SpeculativeConfig
    grows_with_match: bool
    counts: dict[str, Count] = field(default_factory=dict)

    def tokens_per_pass(self) -> float:
        """Over all texts, for sorting."""
        return self.counts[ALL].num_emitted / max(1, self.counts[ALL].num_passes)


def read_recordings(file: Path) -> list[Recording]:
    """Read the JSON lines of `file`, without texts that end with their first token."""
    lines = (json.loads(line) for line in file.read_text().splitlines() if line.strip())
    texts = (Recording(each.get("category", ALL), each["prompt_ids"], each["output_ids"]) for each in lines)
    return [text for text in texts if len(text.output) > 1]


def replay(proposer: NgramProposer, text: Recording) -> Count:
    """Decode one recorded text by greedy verification."""
    count, position = Count(), 1
    slot = np.zeros(1, dtype=np.int32)
    proposer.admit(0, np.array(text.prompt + text.output[:1], dtype=np.int32))
    while position < len(text.output):
        wanted = text.output[position:]
        root = np.array(text.output[position - 1 : position], dtype=np.int32)
        max_nodes = np.array([min(MAX_NODES, len(wanted))], dtype=np.int32)
        trees = proposer.propose(DraftBatch(slot, root, max_nodes))
        candidates = trees.tokens[0, 1 : trees.num_nodes[0]].tolist()
        num_accepted = 0
        while num_accepted < len(candidates) and candidates[num_accepted] == wanted[num_accepted]:
            num_accepted += 1
        committed = np.array([wanted[: num_accepted + 1]], dtype=np.int32)
        num_committed = np.array([num_accepted + 1], dtype=np.int32)
        proposer.observe(Committed(slot, committed, num_committed, num_committed - 1))
        count.add(Count(1, num_accepted + 1, len(candidates)))
        position += num_accepted + 1
    proposer.release(0)
    return count


def measure(result: Result, texts: Iterable[Recording]) -> Result:
    """Fill in `result.counts`."""
    proposer = NgramProposer(result.config, grows_with_match=result.grows_with_match)
    for text in texts:
        count = replay(proposer, text)
        for category in (ALL, text.category):
            result.counts.setdefault(category, Count()).add(count)
    return result


def settings(args: argparse.Namespace) -> list[Result]:
    """Every combination asked for whose bounds do not exclude each other."""
    grid = itertools.product(args.min, args.max, args.candidates, args.occurrence, args.growth)
    return [
        Result(_config(count, shortest, longest, occurrence), GROWTH[growth])
        for shortest, longest, count, occurrence, growth in grid
        if shortest <= longest
    ]


def _config(count: int, shortest: int, longest: int, occurrence: str) -> SpeculativeConfig:
    return SpeculativeConfig(
        "ngram",
        num_speculative_tokens=count,
        prompt_lookup_min=shortest,
        prompt_lookup_max=longest,
        occurrence=occurrence,
    )


def show(results: list[Result], categories: list[str]) -> None:
    """Print one row a setting, the best first."""
    title = "Tokens per pass (bonus token included) on recorded greedy outputs"
    table = Table(title=title, caption="judged: candidates a pass over all texts, accepted or not")
    for heading in ("n", "k", "occurrence", "growth", ALL, "judged", *categories):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in sorted(results, key=Result.tokens_per_pass, reverse=True):
        config, total = result.config, result.counts[ALL]
        table.add_row(
            f"{config.prompt_lookup_min}-{config.prompt_lookup_max}",
            str(config.num_speculative_tokens),
            config.occurrence,
            "on" if result.grows_with_match else "off",
            total.per_pass(total.num_emitted),
            total.per_pass(total.num_candidates),
            *(each.per_pass(each.num_emitted) for each in map(result.counts.__getitem__, categories)),
        )
    Console(width=Console(width=1000).measure(table).maximum).print(
        table
    )  # never cut to the terminal's width


def main() -> None:
    """Replay all texts with every setting and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--min", type=int, nargs="+", default=[1, 2, 3], help="prompt_lookup_min")
    parser.add_argument("--max", type=int, nargs="+", default=[3, 4, 6], help="prompt_lookup_max")
    parser.add_argument("--candidates", type=int, nargs="+", default=[4, 5, 8], help="num_speculative_tokens")
    parser.add_argument("--occurrence", nargs="+", default=list(OCCURRENCES), choices=OCCURRENCES)
    parser.add_argument("--growth", nargs="+", default=list(GROWTH), choices=GROWTH, help="grows_with_match")
    args = parser.parse_args()
    texts = read_recordings(args.file)
    if not texts:
        parser.error(f"{args.file} holds no output of two tokens or more")
    show([measure(each, texts) for each in settings(args)], sorted({each.category for each in texts}))


if __name__ == "__main__":
    main()
