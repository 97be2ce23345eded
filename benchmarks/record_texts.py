"""Record what a target says to prompts of a file, greedily, for benchmarks/ngram_occurrence.py and lookup_priors.py.

Input: JSON lines, {"kind": "chat", "prompt": "…"} each; as many prompts of each kind, drawn with a fixed seed.
Run: python -m benchmarks.record_texts prompts.jsonl outputs.jsonl [--checkpoint FOLDER] [--texts 60] [--max-tokens 160]
"""

import argparse
import json
import random
from pathlib import Path

from tspec import LLM, SamplingParams
from tspec.checkpoint.demo_model import ensure_demo_model

LONGEST_PROMPT = 3000
"""Characters: longer prompts take minutes, and say little about lookups of the output."""


def draw_prompts(file: Path, count: int) -> list[tuple[str, str]]:
    """Kind and prompt of `count` prompts, each kind in turn, in an order that never changes."""
    by_kind: dict[str, list[str]] = {}
    for line in file.read_text().split("\n"):  # texts may hold other ends of lines
        if not line:
            continue
        record = json.loads(line)
        if len(record["prompt"]) <= LONGEST_PROMPT:
            by_kind.setdefault(record["kind"], []).append(record["prompt"])
    order = random.Random(0)
    for prompts in by_kind.values():
        order.shuffle(prompts)
    rounds = range(max(map(len, by_kind.values()), default=0))
    in_turn = [(kind, prompts[at]) for at in rounds for kind, prompts in by_kind.items() if at < len(prompts)]
    return in_turn[:count]


def main() -> None:
    """Decode, and write one line a text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", type=Path)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=160)
    args = parser.parse_args()
    drawn = draw_prompts(args.prompts, args.texts)
    with LLM(
        args.checkpoint or ensure_demo_model(), max_model_len=2048, speculative_config={"method": "none"}
    ) as llm:
        prompts = [llm.encode_chat([{"role": "user", "content": prompt}]) for _, prompt in drawn]
        params = SamplingParams(max_tokens=args.max_tokens)
        results = llm.generate(prompts, params, use_progress=True)
    with args.outputs.open("w") as file:
        for (kind, _), result in zip(drawn, results, strict=True):
            ids = {"prompt_ids": result.prompt_token_ids, "output_ids": result.token_ids}
            file.write(json.dumps({"category": kind} | ids) + "\n")


if __name__ == "__main__":
    main()
