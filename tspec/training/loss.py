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


def judge(head: EagleHead, batch: Batch, num_steps: int) -> tuple[torch.Tensor, Outcome]:
    """Run a head over a batch: the loss to descend, a scalar, and the figures by step.

    The loss is the cross entropy to the target's distribution over the head's vocabulary, at pairs whose next token
    the head has; a pair counts in step s where the chain began in the answer.
    """
    p, is_known = batch.scores.softmax(dim=-1), batch.says >= 0
    was_right = torch.ones_like(is_known)
    total, rows = torch.zeros((), device=p.device), []
    for step, put_out in enumerate(head(batch.aux, batch.embedded, batch.spans, num_steps)):
        is_counted = batch.reach >= step
        if step:
            was_right = pad(was_right[:-1], (1, 0))
        logits = head.logits(put_out).float()
        loss = logits.logsumexp(-1) - (p * logits).sum(-1)
        loss = torch.where(is_counted & is_known, loss, 0).sum()
        num_known = (is_counted & is_known).sum()
        total = total + DECAY**step * loss / num_known.clamp_min(1)
        chains = (was_right & is_counted).sum()
        was_right = was_right & is_counted & (logits.max(dim=-1).indices == batch.says)
        rows.append(
            torch.stack([loss.detach(), num_known, is_counted.sum(), chains, was_right.sum()]).double()
        )
    weight = sum(DECAY**step for step in range(num_steps))
    return total / weight, Outcome(torch.stack(rows).cpu())
