"""Trains a draft model: a few layers of the target learn to say what it says, and become a checkpoint of their own."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from tspec.checkpoint.hf_config import read_config
from tspec.checkpoint.json_object import read_object
from tspec.checkpoint.weights import HEAD
from tspec.core.config import ModelConfig
from tspec.core.whole_files import replace_file, replace_text
from tspec.training.hidden import Target
from tspec.training.loss import Outcome
from tspec.training.run import Job, train
from tspec.training.settings import DraftSettings, kept_layers
from tspec.training.stored_states import observing
from tspec.training.student import Student, judge_student, make_lesson
from tspec.training.texts import Text
from tspec.training.train import OnRecord

if TYPE_CHECKING:
    from tspec.build import Progress

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def train_draft(
    target: Path,
    prompts: Sequence[str],
    out: Path,
    settings: DraftSettings,
    *,
    on_progress: "Progress" = lambda what, done, total: None,
    on_record: OnRecord = lambda record: None,
) -> Path:
    """Train a draft model of the target in `target` into `out / "draft"`; else as `run.train`.

    Errors    ConfigError besides where the target has not more layers than the draft model is to have
    """
    config = read_config(target)
    layers = kept_layers(config, settings)

    def set_up(model: Any, device: torch.device, taught: Sequence[Text], held_out: Sequence[Text]) -> Job:
        student = Student(model, layers).to(device)
        teacher, head = Target(model, (), device), model.lm_head.weight
        observe = observing(teacher, [*taught, *held_out], out, settings.batch_tokens, on_progress)

        def judge_texts(texts: Sequence[Text]) -> tuple[torch.Tensor, Outcome]:
            return judge_student(student, make_lesson(teacher, texts, observe(texts)), head)

        def write() -> Path:
            write_draft(out / "draft", target, config, student, head, layers)
            return out / "draft"

        return Job(student, taught, judge_texts, write)

    return train(target, prompts, out, settings, set_up, on_progress, on_record)


def write_draft(
    folder: Path,
    target: Path,
    config: ModelConfig,
    student: Student,
    head: torch.Tensor,
    layers: Sequence[int],
) -> None:
    """Write a checkpoint of the target's family in bfloat16, with the target's tokenizer.

    head     [vocabulary, hidden], the target's output layer
    layers   those of the target that the student started from
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = read_object(target / "config.json")
    keys |= {"num_hidden_layers": len(layers), "torch_dtype": "bfloat16"}
    keys.pop("dtype", None)
    if "layer_types" in keys or keys.get("use_sliding_window"):
        windows = [config.sliding_windows[layer] for layer in layers]
        keys["layer_types"] = ["full_attention" if each is None else "sliding_attention" for each in windows]
    tensors = {f"model.{name}": value for name, value in student.decoder.state_dict().items()}
    if not config.tie_word_embeddings:
        tensors[HEAD] = head
    stored = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in tensors.items()}
    weights = save(stored, metadata={"format": "pt"})
    for name in TOKENIZER_FILES:
        if (target / name).exists():
            shutil.copyfile(target / name, folder / name)
    replace_file(folder / "model.safetensors", lambda out: out.write(weights))
    replace_text(folder / "config.json", json.dumps(keys, indent=2) + "\n")
