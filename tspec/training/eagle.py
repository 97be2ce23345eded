"""Trains an EAGLE-3 head for a target: a run whose proposer is `head.py`, written by `write.py`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tspec.checkpoint.hf_config import read_config
from tspec.training.batches import whole_texts
from tspec.training.head import EagleHead, start_from_target
from tspec.training.hidden import Teacher
from tspec.training.loss import Outcome, judge
from tspec.training.run import Job, train
from tspec.training.settings import TrainSettings, head_config
from tspec.training.stored_states import observing
from tspec.training.texts import Text
from tspec.training.train import OnRecord
from tspec.training.write import write_head

if TYPE_CHECKING:
    from tspec.build import Progress


def train_eagle(
    target: Path,
    prompts: Sequence[str],
    out: Path,
    settings: TrainSettings,
    *,
    on_progress: "Progress" = lambda what, done, total: None,
    on_record: OnRecord = lambda record: None,
) -> Path:
    """Train a head of the target in `target` into `out / "head"`; else as `run.train`."""
    config = read_config(target)

    def set_up(model: Any, device: torch.device, taught: Sequence[Text], held_out: Sequence[Text]) -> Job:
        eagle = head_config(config, settings)
        kept = frequent_tokens(taught, eagle.num_logits, config.vocab_size)
        head = EagleHead(eagle).to(device)
        start_from_target(head, model, kept)
        teacher, lessons = Teacher(model, eagle.aux_layers, kept, device), whole_texts(taught)
        observe = observing(teacher, [*lessons, *held_out], out, settings.batch_tokens, on_progress)

        def judge_texts(texts: Sequence[Text]) -> tuple[torch.Tensor, Outcome]:
            return judge(head, teacher.batch(texts, observe(texts)), settings.num_steps)

        def write() -> Path:
            write_head(out / "head", eagle, head.tensors(), kept, target.resolve().name)
            return out / "head"

        return Job(head, lessons, judge_texts, write)

    return train(target, prompts, out, settings, set_up, on_progress, on_record)


def frequent_tokens(texts: Sequence[Text], count: int, vocab_size: int) -> torch.Tensor:
    """The `count` tokens that come most often in answers, [count] int64 ascending; ties go to the lower id."""
    counts = Counter(token for text in texts for token in text.answer)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(ranked[:count]))
