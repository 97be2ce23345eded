"""The loop that trains a proposer: batches, AdamW, a state on disk from which a stopped run goes on to the same end.

Knows nothing of where texts come from, or what is trained on them.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tspec.core.whole_files import replace_file
from tspec.runtime.interrupts import HeldInterrupts
from tspec.training.batches import make_batches
from tspec.training.hidden import fast_dtype
from tspec.training.loss import Outcome
from tspec.training.settings import RunSettings
from tspec.training.texts import Text

SAVE_EVERY_S = 60.0
WARM_UP = 0.05
"""Share of the updates in which the learning rate rises."""

LEAST_RATE = 0.1
"""What is left of the learning rate in the end."""

MAX_GRADIENT = 1.0
BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Record:
    """What one update, or a measurement on texts kept from training, showed.

    update           updates done; of `num_updates` in all
    is_held_out      measured on texts that are not trained on
    loss             soft cross entropy by step, nats
    acceptance       accepted over proposed candidates by step
    tokens_per_pass  what a greedy chain of that many candidates would give, bonus token included
    """

    update: int
    num_updates: int
    is_held_out: bool
    loss: list[float]
    acceptance: list[float]
    tokens_per_pass: float


OnRecord = Callable[[Record], None]


Judge = Callable[[Sequence[Text]], tuple[torch.Tensor, Outcome]]
"""Gives the loss to descend on some texts, a scalar, and the figures by step."""


class Training:
    """A model on its way, with all that decides how it goes on. Parameters that need no gradient stay as they are."""

    def __init__(
        self,
        model: torch.nn.Module,
        judge: Judge,
        texts: Sequence[Text],
        held_out: Sequence[Text],
        settings: RunSettings,
        state_file: Path,
        device: torch.device,
    ) -> None:
        self._judge_texts, self._settings = judge, settings
        self._trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._state_file, self._device = state_file, device
        self._held_out = make_batches(held_out, settings.batch_tokens, seed=0, epoch=0) if held_out else []
        self._optimizer = torch.optim.AdamW(
            self._trained.values(), settings.learning_rate, BETAS, weight_decay=0.01, fused=True
        )
        self._epochs = [
            make_batches(texts, settings.batch_tokens, settings.seed, epoch)
            for epoch in range(settings.num_epochs)
        ]
        self.num_updates = sum(map(len, self._epochs))
        self.records: list[Record] = []
        self._num_done = 0

    def run(self, on_record: OnRecord) -> None:
        """Train to the end from wherever the state on disk is. A Ctrl-C leaves a state that goes on from there."""
        self._resume()
        batches = [batch for epoch in self._epochs for batch in epoch]
        ends = {sum(map(len, self._epochs[: epoch + 1])) for epoch in range(len(self._epochs))}
        saved_at = time.monotonic()
        with HeldInterrupts() as interrupts:
            try:
                while self._num_done < self.num_updates:
                    self._add(self._update(batches[self._num_done]), False, on_record)
                    if self._num_done in ends and self._held_out:
                        self._add(self.measure(), True, on_record)
                    if time.monotonic() - saved_at > SAVE_EVERY_S:
                        self._save()
                        saved_at = time.monotonic()
                    interrupts.let_through()
            finally:
                self._save()

    @torch.no_grad()
    def measure(self) -> Outcome:
        """Figures on the texts that were kept from training."""
        outcomes = [self._judge(batch)[1].sums for batch in self._held_out]
        return Outcome(torch.stack(outcomes).sum(dim=0))

    def _update(self, batch: Sequence[Text]) -> Outcome:
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * _rate(self._num_done, self.num_updates)
        self._optimizer.zero_grad()
        loss, outcome = self._judge(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._trained.values(), MAX_GRADIENT)
        self._optimizer.step()
        self._num_done += 1
        return outcome

    def _judge(self, batch: Sequence[Text]) -> tuple[torch.Tensor, Outcome]:
        dtype = fast_dtype(self._device)
        with torch.autocast(self._device.type, dtype, enabled=dtype is not torch.float32):
            return self._judge_texts(batch)

    def _add(self, outcome: Outcome, is_held_out: bool, on_record: OnRecord) -> None:
        self.records.append(
            Record(
                self._num_done, self.num_updates, is_held_out,
                outcome.loss, outcome.acceptance, outcome.tokens_per_pass,
            )
        )  # fmt: skip
        on_record(self.records[-1])

    def _resume(self) -> None:
        if not self._state_file.exists():
            return
        state = torch.load(self._state_file, map_location=self._device, weights_only=True)
        with torch.no_grad():
            for name, value in state["parameters"].items():
                self._trained[name].copy_(value)
        self._optimizer.load_state_dict(state["optimizer"])
        self.records = [Record(**record) for record in state["records"]]
        self._num_done = state["num_done"]

    def _save(self) -> None:
        state: dict[str, Any] = {
            "parameters": {name: value.detach() for name, value in self._trained.items()},
            "optimizer": self._optimizer.state_dict(),
            "records": [asdict(record) for record in self.records],
            "num_done": self._num_done,
        }
        replace_file(self._state_file, lambda out: torch.save(state, out))


def _rate(num_done: int, num_updates: int) -> float:
    """Share of the largest learning rate: a straight warm-up, then half a cosine."""
    warm_up = max(1, round(WARM_UP * num_updates))
    if num_done < warm_up:
        return (num_done + 1) / warm_up
    share = (num_done - warm_up) / max(1, num_updates - warm_up)
    return LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * share))
