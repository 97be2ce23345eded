"""What tests of training share: a tiny target, prompts for it, settings that train in seconds."""

from pathlib import Path
from typing import Any

PROMPTS = tuple(
    f"{word} {number}" for number, word in enumerate(("tell me", "why is", "count", "name a") * 10)
)


def tiny_settings(**changes: Any) -> Any:
    """Settings for a head that is trained in a few seconds."""
    from tspec.training.settings import TrainSettings

    settings = {
        "num_tokens": 900,
        "max_answer_tokens": 24,
        "num_epochs": 3,
        "vocab_size": 96,
        "batch_tokens": 128,
        "learning_rate": 3e-3,
    }
    return TrainSettings(**settings | changes)


def files_of(folder: Path) -> dict[str, bytes]:
    """Contents of the files of a folder by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}
