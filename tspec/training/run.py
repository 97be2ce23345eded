"""A whole run: texts of the target, a proposer trained on them, its checkpoint and a picture, all in one folder.

run.json       what was asked for; another run finds it and leaves the folder alone
texts.jsonl    what the target answered
states.*       what the target computed for these texts, if that is not too much; of no use after the run
state.pt       parameters, optimizer and place in the data, while training and after
records.jsonl  loss and acceptance of each update
training.png   the same as a picture
head/, draft/  the proposer, as `LLM` loads it
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout

from tspec.checkpoint.hf_config import read_config
from tspec.checkpoint.json_object import read_object
from tspec.core.config import ModelConfig
from tspec.core.errors import ConfigError
from tspec.core.rope import context_limit
from tspec.core.whole_files import replace_text
from tspec.training.batches import split_texts
from tspec.training.hidden import load_target, train_device
from tspec.training.plot import need_matplotlib, plot_records
from tspec.training.settings import RunSettings
from tspec.training.texts import NUM_AT_A_TIME, Text, encode_prompts, first_texts, generate_texts, read_texts
from tspec.training.train import Judge, OnRecord, Training

if TYPE_CHECKING:
    from tspec.build import Progress


@dataclass(frozen=True)
class Job:
    """What a kind of proposer adds to a run: what is trained, on which texts, what judges it, what writes it."""

    trained: torch.nn.Module
    texts: Sequence[Text]
    judge: Judge
    write: Callable[[], Path]


SetUp = Callable[[Any, torch.device, Sequence[Text], Sequence[Text]], Job]
"""Gives the job for the target as transformers runs it, its device, texts to train on, and others to measure on."""


def train(
    target: Path,
    prompts: Sequence[str],
    out: Path,
    settings: RunSettings,
    set_up: SetUp,
    on_progress: "Progress",
    on_record: OnRecord,
) -> Path:
    """Train a proposer of the target in `target` into the folder `out`; returns the proposer's folder.

    A run that was stopped goes on from what `out` holds, and ends with the same bytes as one that was not.
    prompts   what the target is asked, through its chat template where it has one
    Errors    CheckpointError for a target that tspec does not run; ConfigError for a folder of another run, for
              prompts of which none fits, while another process trains in `out`, and where matplotlib is not installed
    Cost      most of the time goes into the target's answers
    """
    need_matplotlib()
    config = read_config(target)
    claim_folder(out, target, prompts, settings)
    with _alone_in(out):
        texts = _texts(target, config, prompts, out / "texts.jsonl", settings, on_progress)
        taught, held_out = split_texts(texts)
        if not taught:
            raise ConfigError(
                "texts to train on", got=f"{len(texts)}, none of 3 tokens or more", need="at least one",
                fix="Raise the number of tokens.",
            )  # fmt: skip
        device = train_device()
        job = set_up(load_target(target, device), device, taught, held_out)
        training = Training(job.trained, job.judge, job.texts, held_out, settings, out / "state.pt", device)
        training.run(on_record)
        lines = [json.dumps(asdict(record)) + "\n" for record in training.records]
        (out / "records.jsonl").write_text("".join(lines), encoding="utf-8")
        plot_records(training.records, out / "training.png")
        return job.write()


def claim_folder(out: Path, target: Path, prompts: Sequence[str], settings: RunSettings) -> None:
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


def _texts(
    target: Path,
    config: ModelConfig,
    prompts: Sequence[str],
    file: Path,
    settings: RunSettings,
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
