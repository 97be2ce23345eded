"""Prompts of the Spec-Bench slice in benchmarks/data."""

import itertools
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
    return [question for questions in _by_category().values() for question in questions[:per_category]]


def first_questions(count: int) -> list[Question]:
    """`count` questions, one of each category in turn."""
    in_turn = itertools.zip_longest(*_by_category().values())
    return [question for turn in in_turn for question in turn if question is not None][:count]


def _by_category() -> dict[str, list[Question]]:
    found: dict[str, list[Question]] = {}
    for line in SPEC_BENCH.read_text().splitlines():
        record = json.loads(line)
        question = Question(record["category"], record["prompt"])
        found.setdefault(question.category, []).append(question)
    return found
