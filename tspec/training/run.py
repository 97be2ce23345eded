"""A whole run: texts of the target, a head trained on them, its checkpoint and a picture, all in one folder.

run.json       what was asked for; another run finds it and leaves the folder alone
texts.jsonl    what the target answered
states.*       what the target computed for these texts, if that is not too much; of no use after the run
state.pt       parameters, optimizer and place in the data, while training and after
records.jsonl  loss and acceptance of each update
training.png   the same as a picture
head/          the head, as `LLM` loads it
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from filelock import FileLock, Timeout

from tspec.checkpoint.hf_config import read_config
from tspec.checkpoint.json_object import read_object
from tspec.core.config import ModelConfig
from tspec.core.errors import ConfigError
from tspec.core.rope import context_limit
from tspec.core.whole_files import replace_text
from tspec.training.batches import split_texts
from tspec.training.head import EagleHead, start_from_target
from tspec.training.hidden import Teacher, fast_dtype, load_target
from tspec.training.plot import need_matplotlib, plot_records
from tspec.training.settings import TrainSettings, head_config
from tspec.training.stored_states import teaching
from tspec.training.texts import NUM_AT_A_TIME, Text, encode_prompts, first_texts, generate_texts, read_texts
from tspec.training.train import OnRecord, Training
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
    """Train an EAGLE-3 head of the target in `target` into the folder `out`; returns the folder of the head.

    A run that was stopped goes on from what `out` holds, and ends with the same head as one that was not.
    prompts   what the target is asked, through its chat template where it has one
    Errors    CheckpointError for a target that tspec does not run; ConfigError for a folder of another run, for
              prompts of which none fits, while another process trains in `out`, and where matplotlib is not installed
    Cost      most of the time goes into the target's answers
    """
    need_matplotlib()
    config = read_config(target)
    claim_folder(out, target, prompts, settings)
    with _alone_in(out):
        return _train(target, config, prompts, out, settings, on_progress, on_record)


def _train(
    target: Path,
    config: ModelConfig,
    prompts: Sequence[str],
    out: Path,
    settings: TrainSettings,
    on_progress: "Progress",
    on_record: OnRecord,
) -> Path:
    texts = _texts(target, config, prompts, out / "texts.jsonl", settings, on_progress)
    training, kept = _set_up(target, config, texts, out, settings, on_progress)
    training.run(on_record)
    lines = [json.dumps(asdict(record)) + "\n" for record in training.records]
    (out / "records.jsonl").write_text("".join(lines), encoding="utf-8")
    plot_records(training.records, out / "training.png")
    write_head(out / "head", training.head.config, training.head.tensors(), kept, target.resolve().name)
    return out / "head"


def claim_folder(out: Path, target: Path, prompts: Sequence[str], settings: TrainSettings) -> None:
    """Mark `out` as this run's.  Errors: ConfigError for a folder that is another run's, or holds other things."""
    asked = {
        "target": hashlib.sha256((target / "config.json").read_bytes()).hexdigest(),
        "prompts": hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest(),
        "settings": asdict(settings),
    }
    file = out / "run.json"
    found = read_object(file) if file.exists() else None
    if found is None and out.exists() and any(out.iterdir()):
        raise ConfigError(
            str(out), got="a folder with other things", need="a new or empty folder, or that of a run to go on with",
            fix="Give another folder.",
        )  # fmt: skip
    if found is not None and found != asked:
        differing = [name for name in asked if found.get(name) != asked[name]]
        raise ConfigError(
            str(out), got=f"a run with other {' and '.join(differing)}", need="that of the run to go on with",
            fix="Give the same target, prompts and options, or another folder.",
        )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(asked, indent=2) + "\n")


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Hold the folder of a run.  Errors: ConfigError where another process holds it"""
    lock = FileLock(out / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ConfigError(
            str(out), got="another process that trains in it", need="this one alone",
            fix="Wait for the other one to end, or stop it.",
        ) from error  # fmt: skip
    try:
        yield
    finally:
        lock.release()


def frequent_tokens(texts: Sequence[Text], count: int, vocab_size: int) -> torch.Tensor:
    """The `count` tokens that come most often in answers, [count] int64 ascending; ties go to the lower id."""
    counts = Counter(token for text in texts for token in text.answer)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(ranked[:count]))


def _texts(
    target: Path,
    config: ModelConfig,
    prompts: Sequence[str],
    file: Path,
    settings: TrainSettings,
    on_progress: "Progress",
) -> list[Text]:
    """The texts of the run. The engine that makes them is gone before training begins: both need the memory."""
    texts = first_texts(read_texts(file), settings.num_tokens)
    if sum(len(text.answer) for text in texts) >= settings.num_tokens:
        return texts
    room = min(settings.max_answer_tokens, context_limit(config) // 2)
    from tspec.llm import LLM  # slow to import, and a run with all of its texts needs none

    with LLM(target, max_num_seqs=NUM_AT_A_TIME, on_progress=on_progress) as llm:
        return generate_texts(
            llm,
            encode_prompts(llm, prompts, room),
            file,
            num_tokens=settings.num_tokens,
            max_answer_tokens=room,
            on_progress=on_progress,
        )


def _set_up(
    target: Path,
    config: ModelConfig,
    texts: Sequence[Text],
    out: Path,
    settings: TrainSettings,
    on_progress: "Progress",
) -> tuple[Training, torch.Tensor]:
    """The training, and the target's ids of the head's tokens."""
    taught, held_out = split_texts(texts)
    if not taught:
        raise ConfigError(
            "texts to train on", got=f"{len(texts)}, none of 3 tokens or more", need="at least one",
            fix="Raise the number of tokens.",
        )  # fmt: skip
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_target(target, device, fast_dtype(device))
    eagle = head_config(config, settings)
    kept = frequent_tokens(taught, eagle.num_logits, config.vocab_size)
    head = EagleHead(eagle).to(device)
    start_from_target(head, model, kept)
    teacher = Teacher(model, eagle.aux_layers, kept, device)
    teach = teaching(teacher, [*taught, *held_out], out, settings.batch_tokens, on_progress)
    return Training(head, teach, taught, held_out, settings, out / "state.pt", device), kept
