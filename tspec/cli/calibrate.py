"""`tspec inspect HEAD --target CHECKPOINT --calibrate`: which layers of the target an EAGLE-3 head was trained on.

Ids of layers are published in two conventions, one apart. The wrong one gives the same text, only slower: this measures
how often candidates are accepted with the ids as read, one lower and one higher.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tspec.cli.bench import PROMPTS
from tspec.core.errors import CheckpointError, ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.progress import progress_bar

if TYPE_CHECKING:
    from tspec.llm import LLM

OFFSETS = (-1, 0, 1)
MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Measured:
    """How well candidates did with the layers `offset` away from those that the file names."""

    offset: int
    acceptance_rate: float
    tokens_per_pass: float


def calibrate(head: Path, target: Path) -> None:
    """Print a line for each offset that the target has layers for, and which one to use.

    Errors: CheckpointError for a head that does not fit the target, ConfigError where no offset is possible
    """
    from tspec.build_draft import method_of  # loads torch

    if method_of(head) != "eagle":
        raise ConfigError("--calibrate", got=f"{head}", need="an EAGLE head", fix="Leave out --calibrate.")
    rows = list(_measure_all(head, target))
    best = max(rows, key=lambda row: row.tokens_per_pass)
    table = Table("aux_layer_offset", "accepted", "tokens per pass")
    for row in rows:
        name = f"{row.offset:+d}" if row.offset else "0, as published"
        table.add_row(name, f"{row.acceptance_rate:.1%}", f"{row.tokens_per_pass:.2f}")
    Console().print(table)
    print(f"use aux_layer_offset {best.offset}" if best.offset else "the layers as published are the best")


def _measure_all(head: Path, target: Path) -> Iterator[Measured]:
    for offset in OFFSETS:
        try:
            yield measure(head, target, offset)
        except CheckpointError:
            if offset == 0:  # as published: then the head itself is wrong
                raise


def measure(head: Path, target: Path, offset: int) -> Measured:
    """Decode the built-in prompts with one offset.

    Errors: CheckpointError where the target has no such layers
    """
    from tspec.llm import LLM  # slow to import, and wrong usage should not wait for it

    speculative = {"method": "eagle", "model": head, "aux_layer_offset": offset}
    with progress_bar() as on_progress:
        llm = LLM(target, speculative_config=speculative, on_progress=on_progress)
    with llm:
        llm.generate([_chat(llm, prompt) for prompt in PROMPTS], SamplingParams(max_tokens=MAX_TOKENS))
        metrics = llm.metrics()
    return Measured(offset, metrics.acceptance_rate or 0.0, metrics.tokens_per_pass or 0.0)


def _chat(llm: "LLM", prompt: str) -> str | list[int]:
    """The prompt as the model's chats have it; as it is for a model without a chat template."""
    try:
        return llm.encode_chat([{"role": "user", "content": prompt}])
    except ConfigError:
        return prompt
