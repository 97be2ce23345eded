"""How often are the candidates of n-gram and suffix lookup right, by class of evidence?

Replays recorded texts one after the other, as greedy verification would decode them: responses fill the store that the
later texts find. A candidate counts where all before it are right. The tables of `tspec/proposers/lookup_priors.py` are
these figures, rounded and made smooth. Runs no model and measures no time.

Input: JSON lines, {"prompt_ids": [1, 2], "output_ids": [3, 4]} each: see benchmarks/record_texts.py.
Run: python -m benchmarks.lookup_priors outputs.jsonl [--candidates 15]
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.ngram_occurrence import Recording, read_recordings
from tspec.core.proposer import Committed, DraftBatch, RankedProposer
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import CandidateTrees
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.suffix import SuffixProposer
from tspec.proposers.suffix_growth import NUM_MATCHES, NUM_SHARES

MATCHES = ("1", "2", "3", "4", "5-6", "7-9", "10")
SHARES = ("< 1/4", "< 1/2", "< 9/10", "1, once", "rest")


@dataclass(slots=True)
class Hits:
    """What a proposer did: candidates of each class and how many were right, passes, tokens, candidates judged."""

    tried: np.ndarray
    right: np.ndarray = field(init=False)
    num_passes: int = 0
    num_emitted: int = 0
    num_candidates: int = 0

    def __post_init__(self) -> None:
        self.right = np.zeros_like(self.tried)

    def cell(self, number: int) -> str:
        """Hit rate of a class, and how many it is taken from."""
        tried = self.tried[number]
        return f"{self.right[number] / tried:.2f} ({tried})" if tried else "-"


def judge(trees: CandidateTrees, wanted: list[int], hits: Hits) -> int:
    """Walk down the one row's tree, count what was offered at each node of the path; return how many were right."""
    assert trees.evidence is not None
    node, depth = 0, 0
    while depth < len(wanted):
        children = [child for child in range(1, trees.num_nodes[0]) if trees.parents[0, child] == node]
        node = -1
        for child in children:
            evidence = trees.evidence[0, child]
            is_right = trees.tokens[0, child] == wanted[depth]
            hits.tried[evidence] += 1
            hits.right[evidence] += is_right
            node = child if is_right else node
        if node < 0:
            return depth
        depth += 1
    return depth


def replay(proposer: RankedProposer, text: Recording, max_candidates: int, hits: Hits) -> None:
    """Decode one recorded text by greedy verification."""
    slot, position = np.zeros(1, dtype=np.int32), 0
    proposer.admit(0, np.array(text.prompt, dtype=np.int32))
    last = text.prompt[-1]
    while position < len(text.output):
        wanted = text.output[position:]
        root, max_nodes = (
            np.array([each], dtype=np.int32) for each in (last, 1 if position == 0 else max_candidates + 1)
        )
        trees = proposer.propose(DraftBatch(slot, root, max_nodes))
        committed = judge(trees, wanted[:-1], hits) + 1
        tokens, counts = np.array([wanted[:committed]], dtype=np.int32), np.array([committed], dtype=np.int32)
        proposer.observe(Committed(slot, tokens, counts, counts - 1))
        if position > 0:  # the first token comes from the prompt's own pass
            hits.num_passes += 1
            hits.num_emitted += committed
            hits.num_candidates += int(trees.num_nodes[0]) - 1
        position, last = position + committed, wanted[committed - 1]
    proposer.release(0)


def show(name: str, hits: Hits, console: Console) -> None:
    """Print the classes of one proposer, and what a pass of it gave."""
    if name == "ngram":
        table = Table("match", "right (tried)", title=name)
        for match in range(1, len(hits.tried)):
            table.add_row(str(match), hits.cell(match))
        console.print(table)
    else:
        for population, first in (("own text", 0), ("responses", NUM_MATCHES * NUM_SHARES)):
            table = Table(
                "match", *SHARES, title=f"{name}, {population}: right (tried) by share of continuations"
            )
            for row, match in enumerate(MATCHES):
                at = first + row * NUM_SHARES
                table.add_row(match, *(hits.cell(number) for number in range(at, at + NUM_SHARES)))
            console.print(table)
    emitted, judged = (each / max(1, hits.num_passes) for each in (hits.num_emitted, hits.num_candidates))
    console.print(f"{name}: {emitted:.3f} tokens a pass, {judged:.2f} candidates judged")


def main() -> None:
    """Replay all texts with both proposers and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--candidates", type=int, default=15, help="most candidates a pass")
    args = parser.parse_args()
    texts, console = read_recordings(args.file), Console()
    config = SpeculativeConfig("ngram", num_speculative_tokens=args.candidates)
    proposers = (NgramProposer(config), SuffixProposer(config, max_candidates=args.candidates))
    for proposer in proposers:
        hits = Hits(np.zeros(len(proposer.priors), dtype=np.int64))
        for text in texts:
            replay(proposer, text, args.candidates, hits)
        show(proposer.name, hits, console)


if __name__ == "__main__":
    main()
