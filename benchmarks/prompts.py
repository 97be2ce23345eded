"""Prompts of the Spec-Bench slice in benchmarks/data."""

import json
from dataclasses import dataclass
from pathlib import Path

SPEC_BENCH = Path(__file__).parent / "data" / "spec_bench.jsonl"


@dataclass(frozen=True, slots=True)
class Question:
    """One question of Spec-Bench."""

    category: str
    prompt: str


def read_questions(per_category: int) -> list[Question]:
    """The first `per_category` questions of each category."""
    found: dict[str, list[Question]] = {}
    for line in SPEC_BENCH.read_text().splitlines():
        record = json.loads(line)
        question = Question(record["category"], record["prompt"])
        found.setdefault(question.category, []).append(question)
    return [question for questions in found.values() for question in questions[:per_category]]
