"""Checkpoints that whole-program tests share, each made once a session. Copy one before changing it."""

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of two layers with the byte tokenizer and no chat template; 256 tokens of context."""
    return _with_bytes(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_folder` with a context of 16,384 tokens: enough to be interrupted in the middle of a text."""
    return _with_bytes(tmp_path_factory.mktemp("long"), max_position_embeddings=16384)


@pytest.fixture
def tiny_copy(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of `tiny_folder` for one test to damage."""
    return shutil.copytree(tiny_folder, tmp_path / "checkpoint")


def _with_bytes(folder: Path, **config: object) -> Path:
    from support.tiny_models import BOS, EOS, byte_tokenizer, tiny_checkpoint  # slow: not for every test

    tiny_checkpoint(folder, "llama", vocab=EOS + 2, bos_token_id=BOS, eos_token_id=EOS, **config)
    byte_tokenizer(folder)
    return folder


def edit_json(file: Path, **values: object) -> None:
    """Set keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
