"""What tests of heads' checkpoints share: a target's configuration, refusals, damaged folders."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.head_checkpoints import SAFETENSORS_FILE, write_folder

from tspec.checkpoint.heads import read_head
from tspec.checkpoint.torch_file import TorchFile
from tspec.checkpoint.weights import Checkpoint
from tspec.core.config import ModelConfig, RopeConfig, RopeKind
from tspec.core.dtypes import DType
from tspec.core.errors import CheckpointError

TARGET = ModelConfig(
    architecture="llama",
    vocab_size=60,
    hidden_size=32,
    intermediate_size=64,
    num_layers=12,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_eps=1e-6,
    max_position=16384,
    dtype=DType.BFLOAT16,
    rope=RopeConfig(RopeKind.LLAMA3, 500_000.0, 8.0, 8192),
)


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Say why a folder (tmp_path, unless another) is refused, having read no weight."""

    def refuse(folder: Path = tmp_path, target: ModelConfig = TARGET, layer_offset: int = 0) -> str:
        def read(self, name):
            raise AssertionError(f"{name} was read")

        with monkeypatch.context() as patch, pytest.raises(CheckpointError) as caught:
            patch.setattr(Checkpoint, "load", read)
            patch.setattr(TorchFile, "load", read)
            read_head(folder, target, layer_offset)
        message = str(caught.value)
        assert "\n" not in message and str(folder) in message and len(message) < 1200
        return message

    return refuse


def change_tensors(folder: Path, *without: str, **tensors: torch.Tensor) -> None:
    """Write the folder's tensors anew, without some, and with others; `__` stands for a dot."""
    held = load_file(folder / SAFETENSORS_FILE)
    held = {name: value for name, value in held.items() if name not in without}
    held |= {name.replace("__", "."): value for name, value in tensors.items()}
    write_folder(folder, json.loads((folder / "config.json").read_text()), held, SAFETENSORS_FILE)
