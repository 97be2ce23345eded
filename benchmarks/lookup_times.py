"""Time of the lookup proposers: a round of one row, a prompt, a response that ends; by length of the text.

Texts are drawn so that they repeat themselves about as often as language does: runs of an earlier place, then something
new. The store of responses is full, so that each response that comes makes an old one go.
Run: python -m benchmarks.lookup_times [--contexts 500 2000 8000] [--candidates 7]
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine_line
from tspec.core.proposer import Committed, DraftBatch
from tspec.core.speculative_config import SpeculativeConfig
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.suffix import CATCH_UP_TOKENS, MAX_RESPONSE_TOKENS, SuffixProposer

ROUNDS = 400
COMMITTED = 2
"""Tokens that a round commits."""
RESPONSE_TOKENS = 200
VOCABULARY = 49_152

Lookup = NgramProposer | SuffixProposer


def draw_text(random: np.random.Generator, length: int) -> np.ndarray:
    """Tokens int32 [length]: by turns some of few common and many rare ones, and a copy of an earlier run."""
    text: list[int] = []
    while len(text) < length:
        text += np.minimum(random.zipf(1.3, random.integers(1, 12)), VOCABULARY - 1).tolist()
        start = int(random.integers(0, len(text)))
        text += text[start : start + int(random.integers(1, 8))]
    return np.array(text[:length], dtype=np.int32)


def microseconds(call: Callable[[], object]) -> float:
    """Time of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def time_lookup(proposer: Lookup, random: np.random.Generator, context: int) -> list[float]:
    """Median microseconds: admission of `context` tokens, `propose` and `observe` of a row, release."""
    text = draw_text(random, context + ROUNDS * COMMITTED)
    slot, count = np.zeros(1, dtype=np.int32), np.full(1, COMMITTED, dtype=np.int32)
    most = np.full(1, 64, dtype=np.int32)
    admitted = microseconds(lambda: proposer.admit(0, text[:context]))
    times = np.zeros((ROUNDS, 2))
    for turn in range(ROUNDS):
        end = context + turn * COMMITTED
        batch = DraftBatch(slot, text[end - 1 : end], most)
        committed = Committed(slot, text[None, end : end + COMMITTED], count, count - 1)
        times[turn, 0] = microseconds(lambda batch=batch: proposer.propose(batch))
        times[turn, 1] = microseconds(lambda committed=committed: proposer.observe(committed))
    released = microseconds(lambda: proposer.release(0))
    return [admitted, *np.median(times, axis=0), float(np.percentile(times.sum(axis=1), 99)), released]


def full_suffix_proposer(
    config: SpeculativeConfig, candidates: int, random: np.random.Generator
) -> SuffixProposer:
    """A proposer that has seen a little more than it keeps."""
    proposer = SuffixProposer(config, max_candidates=candidates)
    seen = draw_text(random, MAX_RESPONSE_TOKENS + 10 * RESPONSE_TOKENS)
    for start in range(0, len(seen), RESPONSE_TOKENS):
        proposer.learn(seen[start : start + RESPONSE_TOKENS])
    return proposer


def let_responses_wait(proposer: Lookup, random: np.random.Generator) -> None:
    """Enough for all rounds to have something to count."""
    if isinstance(proposer, SuffixProposer):
        for _ in range(ROUNDS * (COMMITTED + CATCH_UP_TOKENS) // RESPONSE_TOKENS):
            proposer.store.learn(draw_text(random, RESPONSE_TOKENS))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contexts", type=int, nargs="+", default=[500, 2000, 8000])
    parser.add_argument("--candidates", type=int, default=7)
    args = parser.parse_args()
    random, console = np.random.default_rng(0), Console()
    config = SpeculativeConfig("ngram", num_speculative_tokens=args.candidates)
    proposers: list[Lookup] = [NgramProposer(config), full_suffix_proposer(config, args.candidates, random)]
    console.print(machine_line())
    table = Table(
        "proposer", "context", "admit", "propose", "observe", "both, 99%", "release", title="microseconds"
    )
    for proposer in proposers:
        proposer.warm_up()
        for context in args.contexts:
            let_responses_wait(proposer, random)
            times = time_lookup(proposer, random, context)
            table.add_row(proposer.name, str(context), *(f"{each:.1f}" for each in times))
    console.print(table)


if __name__ == "__main__":
    main()
