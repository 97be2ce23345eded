"""A few layers of the target that learn to say what it says: what of a draft model is trained, and how far off it is.

Embeddings and output layer are the target's and stay: they are most of a small model, and what the target says is
written in them.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from tspec.training.hidden import ROUND, Observed, Target, fill_up, padded
from tspec.training.loss import Outcome, Tally
from tspec.training.texts import Text

NUM_DEPTHS = 3
"""Candidates of a chain that the figures are for; all have the same loss, since the student sees whole texts."""

ROWS_AT_A_TIME = 128
"""Rows whose logits over the whole vocabulary are in memory at a time."""


class Student(torch.nn.Module):
    """The decoder of a draft model, float32, as transformers runs it; its embedding is frozen."""

    def __init__(self, target: Any, layers: Sequence[int]) -> None:
        """`target`: transformers' form of the target; `layers`: those of it that this one starts from."""
        super().__init__()
        config = copy.deepcopy(target.config)
        config.num_hidden_layers = len(layers)
        if getattr(config, "layer_types", None) is not None:
            config.layer_types = [config.layer_types[layer] for layer in layers]
        self.decoder = type(target.model)(config).eval()  # eval: no dropout
        theirs = target.model.state_dict()
        with torch.no_grad():
            for name, value in self.decoder.state_dict().items():
                value.copy_(theirs[target_name(name, layers)])
        self.decoder.embed_tokens.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """What leaves the final norm, [texts, T, hidden], for tokens [texts, T]; padding comes behind."""
        return self.decoder(tokens, use_cache=False).last_hidden_state  # type: ignore[no-any-return]


def target_name(name: str, layers: Sequence[int]) -> str:
    """The name in the target's decoder of what is called `name` in a decoder that starts from `layers` of it."""
    parts = name.split(".")
    if parts[0] == "layers":
        parts[1] = str(layers[int(parts[1])])
    return ".".join(parts)


@dataclass(frozen=True)
class Lesson:
    """Texts side by side, and what the target says at their taught places: those before each token of the answer.

    tokens  [texts, T] int64
    places  [taught places] int64, where they are among the texts * T; zeros behind as padding
    reach   [taught places] int64, how many of its text are before each; -1 in the padding
    last    [taught places, hidden], what leaves the target's final norm
    says    [taught places] int64, the target's likeliest token
    """

    tokens: torch.Tensor
    places: torch.Tensor
    reach: torch.Tensor
    last: torch.Tensor
    says: torch.Tensor


def make_lesson(target: Target, texts: Sequence[Text], observed: Sequence[Observed]) -> Lesson:
    """Put texts side by side with what was observed of them."""
    tokens, _ = padded(texts, target.device)
    taught = [slice(len(text.prompt) - 1, len(text.prompt) + len(text.answer) - 1) for text in texts]
    places = [torch.arange(each.start, each.stop) + row * tokens.shape[1] for row, each in enumerate(taught)]
    joined = list(zip(observed, taught, strict=True))
    num_taught = sum(len(text.answer) for text in texts)
    rows = num_taught + -num_taught % ROUND
    reach = [*(torch.arange(len(each)) for each in places), torch.full((rows - num_taught,), -1)]
    return Lesson(
        tokens=tokens,
        places=fill_up(torch.cat(places), rows).to(target.device),
        reach=torch.cat(reach).to(target.device),
        last=fill_up(torch.cat([each.states[where] for each, where in joined]), rows).to(target.device),
        says=fill_up(torch.cat([each.likeliest[where] for each, where in joined]), rows)
        .to(target.device)
        .long(),
    )


def judge_student(student: Student, lesson: Lesson, head: torch.Tensor) -> tuple[torch.Tensor, Outcome]:
    """Run a student over texts: the loss to descend, a scalar, and the figures by depth of a greedy chain.

    The loss is the cross entropy to the target's distribution over the whole vocabulary.
    head    [vocabulary, hidden], the output layer of target and student
    """
    put_out = student(lesson.tokens).flatten(0, 1).index_select(0, lesson.places)
    losses, likeliest = _CrossEntropy.apply(put_out, lesson.last, head)
    tally, is_right = Tally(lesson.reach), likeliest == lesson.says
    first, *_ = [tally.add(losses, torch.ones_like(is_right), is_right) for _ in range(NUM_DEPTHS)]
    return first, tally.outcome()


class _CrossEntropy(torch.autograd.Function):
    """Cross entropy of softmax(rows @ head.T) to softmax(last @ head.T), [rows] float32, and the likeliest tokens of
    the first, [rows] int64. The gradient is made along with it, so that no logits are kept.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, last: torch.Tensor, head: torch.Tensor) -> Any:
        losses, likeliest, gradients = [], [], []
        parts = zip(rows.split(ROWS_AT_A_TIME), last.split(ROWS_AT_A_TIME), strict=True)
        for ours, theirs in parts:
            log_q = linear(ours.to(head.dtype), head).float().log_softmax(-1)
            p = linear(theirs, head).float().softmax(-1)
            losses.append(-(p * log_q).sum(-1))
            likeliest.append(log_q.max(dim=-1).indices)
            gradients.append((log_q.exp_() - p).to(head.dtype) @ head)
        ctx.save_for_backward(torch.cat(gradients).to(rows.dtype))
        chosen = torch.cat(likeliest)
        ctx.mark_non_differentiable(chosen)
        return torch.cat(losses), chosen

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (by_row,) = ctx.saved_tensors
        return by_row * gradients[0][:, None], None, None
