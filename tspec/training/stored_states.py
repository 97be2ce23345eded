"""What the target computes for texts, kept in files beside them: each epoch reads it instead of computing it anew.

Two files hold the rows of all tokens, text after text, and a third how far they are filled. A run that was killed goes
on filling; what is filled does not depend on where it was killed, as texts are observed in the same groups each time.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tspec.core.errors import ConfigError
from tspec.core.whole_files import replace_text
from tspec.training.batches import make_batches
from tspec.training.hidden import Observed, Target
from tspec.training.texts import Text

if TYPE_CHECKING:
    from tspec.build import Progress

STATES = "states.bin"
MAX_BYTES = 16 << 30
"""More than this is not kept; the target then runs once in each epoch."""


Observe = Callable[[Sequence[Text]], list[Observed]]


def observing(
    target: Target, texts: Sequence[Text], folder: Path, batch_tokens: int, on_progress: "Progress"
) -> Observe:
    """What gives the target's states for some of `texts`: from files in `folder` where these are small enough, else
    from the target itself.

    Errors    ConfigError for files of other texts
    """
    num_tokens = sum(len(text.prompt) + len(text.answer) for text in texts)
    if num_tokens * target.state_width * target.dtype.itemsize > MAX_BYTES:
        return target.observe
    stored = _Stored(target, texts, folder)
    stored.fill(batch_tokens, on_progress)
    return stored.observe


class _Stored:
    """The files, mapped into memory."""

    def __init__(self, target: Target, texts: Sequence[Text], folder: Path) -> None:
        self._target, self._texts = target, texts
        self._filled_file = folder / "states.json"
        self._start_of: dict[int, int] = {}
        total = 0
        for text in texts:
            self._start_of[text.number] = total
            total += len(text.prompt) + len(text.answer)
        self._num_tokens = total
        self._num_filled = self._read_filled(total) if (folder / STATES).exists() else 0

        def mapped(name: str, width: int, dtype: torch.dtype) -> torch.Tensor:
            file = str(folder / name)
            return torch.from_file(file, shared=True, size=total * width, dtype=dtype).view(total, width)

        self._states = mapped(STATES, target.state_width, target.dtype)
        self._likeliest = mapped("states.likeliest.bin", 1, torch.int32)

    def fill(self, batch_tokens: int, on_progress: "Progress") -> None:
        """Run the target over what is missing."""
        groups = make_batches(self._texts, batch_tokens, seed=0, epoch=0)
        for number, group in enumerate(groups):
            if number >= self._num_filled:
                for text, observed in zip(group, self._target.observe(group), strict=True):
                    rows = self._rows_of(text)
                    self._states[rows] = observed.states.cpu()
                    self._likeliest[rows, 0] = observed.likeliest.cpu()
                self._write_filled(number + 1)
            on_progress("hidden states of the target", number + 1, len(groups))

    def observe(self, texts: Sequence[Text]) -> list[Observed]:
        """What is stored."""
        rows = [self._rows_of(text) for text in texts]
        return [Observed(self._states[each], self._likeliest[each, 0]) for each in rows]

    def _rows_of(self, text: Text) -> slice:
        start = self._start_of[text.number]
        return slice(start, start + len(text.prompt) + len(text.answer))

    def _read_filled(self, num_tokens: int) -> int:
        if not self._filled_file.exists():
            return 0
        found: Any = json.loads(self._filled_file.read_text(encoding="utf-8"))
        if found["num_tokens"] != num_tokens:
            raise ConfigError(
                str(self._filled_file), got=f"hidden states of {found['num_tokens']} tokens",
                need=f"of {num_tokens}, as texts.jsonl has", fix="Delete this file: they are computed again.",
            )  # fmt: skip
        return int(found["num_filled"])

    def _write_filled(self, num_filled: int) -> None:
        filled = {"num_tokens": self._num_tokens, "num_filled": num_filled}
        replace_text(self._filled_file, json.dumps(filled))
