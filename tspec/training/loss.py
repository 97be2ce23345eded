"""How far a head's steps are from what the target says, and how many of their candidates would be accepted."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from tspec.training.head import EagleHead
from tspec.training.hidden import Batch

DECAY = 0.8
"""A later step weighs this much of the one before: fewer chains get there."""


@dataclass(frozen=True)
class Outcome:
    """Sums over the taught pairs of one or several batches, [steps, 5] float64.

    A row holds: loss, pairs that count for it, pairs, chains that were right up to this step, and those of them that
    were right in it, too.
    """

    sums: torch.Tensor

    @property
    def loss(self) -> list[float]:
        """Mean soft cross entropy by step, in nats."""
        return (self.sums[:, 0] / self.sums[:, 1].clamp_min(1)).tolist()

    @property
    def acceptance(self) -> list[float]:
        """Accepted over proposed candidates at each depth of a greedy chain."""
        return (self.sums[:, 4] / self.sums[:, 3].clamp_min(1)).tolist()

    @property
    def tokens_per_pass(self) -> float:
        """What a chain of as many candidates as there are steps would give at these pairs, bonus token included."""
        return 1 + float((self.sums[:, 4] / self.sums[:, 2].clamp_min(1)).sum())


class Tally:
    """Counts an `Outcome` step by step: a candidate counts only where all those before it were right."""

    def __init__(self, reach: torch.Tensor) -> None:
        """`reach`: [rows] int64, how many taught rows of its text are before each; -1 in padding."""
        self._reach, self._was_right = reach, torch.ones_like(reach, dtype=torch.bool)
        self._rows: list[torch.Tensor] = []

    def add(self, losses: torch.Tensor, is_known: torch.Tensor, is_right: torch.Tensor) -> torch.Tensor:
        """Count the next step; returns its mean loss over the rows that chains reach and whose token is known.

        losses     [rows] float32
        is_known, is_right  [rows] bool
        """
        step = len(self._rows)
        is_counted = self._reach >= step
        if step:
            self._was_right = pad(self._was_right[:-1], (1, 0))
        chains = (self._was_right & is_counted).sum()
        self._was_right = self._was_right & is_counted & is_right
        loss, num_known = torch.where(is_counted & is_known, losses, 0).sum(), (is_counted & is_known).sum()
        row = [loss.detach(), num_known, is_counted.sum(), chains, self._was_right.sum()]
        self._rows.append(torch.stack(row).double())
        return loss / num_known.clamp_min(1)

    def outcome(self) -> Outcome:
        """What was counted."""
        return Outcome(torch.stack(self._rows).cpu())


def judge(head: EagleHead, batch: Batch, num_steps: int) -> tuple[torch.Tensor, Outcome]:
    """Run a head over a batch: the loss to descend, a scalar, and the figures by step.

    The loss is the cross entropy to the target's distribution over the head's vocabulary, at pairs whose next token
    the head has; a pair counts in step s where the chain began in the answer.
    """
    p, is_known = batch.scores.softmax(dim=-1), batch.says >= 0
    total, tally = torch.zeros((), device=p.device), Tally(batch.reach)
    for step, put_out in enumerate(head(batch.aux, batch.embedded, batch.spans, num_steps)):
        logits = head.logits(put_out).float()
        losses = logits.logsumexp(-1) - (p * logits).sum(-1)
        total = total + DECAY**step * tally.add(losses, is_known, logits.max(dim=-1).indices == batch.says)
    return total / sum(DECAY**step for step in range(num_steps)), tally.outcome()
