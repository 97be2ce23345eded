"""What speculation costs where every guess is wrong: auto against plain decoding, after the first 50 tokens.

The texts are known from a plain run. A proposer gives seven candidates a round, each surely wrong, and says of each
that what speaks for it is usually right; the controller has to find out.

Run: python -m benchmarks.worst_case [CHECKPOINT] [--json FILE]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.machine import machine_line
from benchmarks.prompts import read_questions
from tspec import LLM, SamplingParams
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.core.proposer import Committed, DraftBatch
from tspec.core.tree import NO_PARENT, CandidateTrees
from tspec.proposers.union import Union

FIRST_TOKENS = 50
NUM_WRONG = 7


class WrongProposer:
    """Proposes what the next tokens are not; of one text at a time."""

    name = "wrong"
    priors = np.array([0.9], dtype=np.float32)

    def __init__(self, vocab_size: int) -> None:
        self.text: list[int] = []
        self._vocab_size, self._length = vocab_size, 0

    def warm_up(self) -> None:
        """Nothing to compile."""

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start the text."""
        self._length = len(prompt)

    def release(self, slot: int) -> None:
        """Free nothing."""

    def observe(self, committed: Committed) -> None:
        """Go on in the text."""
        self._length += int(committed.counts[0])

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """A chain of wrong tokens; the root alone where nothing is known of the text."""
        known = self.text[self._length : self._length + min(NUM_WRONG, int(batch.max_nodes[0]) - 1)]
        tokens = [int(batch.roots[0]), *((token + 1) % self._vocab_size for token in known)]
        parents = np.arange(NO_PARENT, len(tokens) - 1, dtype=np.int32)[None]
        row = np.array([tokens], dtype=np.int32)
        num_nodes = np.array([len(tokens)], dtype=np.int32)
        return CandidateTrees(row, parents, num_nodes, evidence=np.zeros_like(row))


def measure(folder: Path, per_category: int, max_tokens: int) -> dict[str, float]:
    """Seconds a token after the first ones, both ways in turn; and candidates a pass."""
    with LLM(folder, max_model_len=2048) as llm:
        engine = llm._engine.opened()
        union = engine.proposer
        assert isinstance(union, Union)
        wrong = WrongProposer(engine.config.vocab_size)
        engine.proposer = engine._weighing = Union("auto", [wrong], union._costs)
        seconds, num_tokens, num_candidates = {"off": 0.0, "auto": 0.0}, 0, 0
        for question in read_questions(per_category):
            prompt = llm.encode_chat([{"role": "user", "content": question.prompt}])
            if len(prompt) + max_tokens > 2048:
                continue
            wrong.text = []
            text = llm.generate(prompt, SamplingParams(max_tokens=max_tokens))[0].token_ids
            wrong.text = prompt + text
            if len(text) <= 2 * FIRST_TOKENS:
                continue
            for way in seconds:
                late_s, candidates = _late_s(llm, prompt, way, max_tokens)
                seconds[way] += late_s
                num_candidates += candidates
            num_tokens += len(text) - FIRST_TOKENS
    return {
        "num_tokens": num_tokens,
        "plain_ms": 1000 * seconds["off"] / num_tokens,
        "auto_ms": 1000 * seconds["auto"] / num_tokens,
        "over_plain": seconds["auto"] / seconds["off"],
        "candidates_per_token": num_candidates / num_tokens,
    }


def _late_s(llm: LLM, prompt: list[int], way: str, max_tokens: int) -> tuple[float, int]:
    """Seconds from the token after the first ones to the last, and candidates of the whole text."""
    handle = llm.add_request(prompt, SamplingParams(max_tokens=max_tokens, speculative=way))
    count, start_s = 0, 0.0
    while not handle.is_finished:
        llm.step()
        if count < FIRST_TOKENS <= len(handle.sequence.output_ids):
            start_s = time.perf_counter()
        count = len(handle.sequence.output_ids)
    return time.perf_counter() - start_s, handle.result.stats.num_candidates


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    console = Console()
    console.print(machine_line())
    figures = measure(args.checkpoint or ensure_demo_model(), args.per_category, args.max_tokens)
    console.print(
        f"after {FIRST_TOKENS} tokens, every guess wrong: {figures['auto_ms']:.2f} ms a token against "
        f"{figures['plain_ms']:.2f} ms plain, {figures['over_plain']:.3f}x; {figures['num_tokens']} tokens, "
        f"{figures['candidates_per_token']:.2f} candidates a token"
    )
    if args.json:
        args.json.write_text(json.dumps({"machine": machine_line(), **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
