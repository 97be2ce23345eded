"""Tests on a CUDA device: skipped without one. Models have random weights, made on the device.

With TRITON_INTERPRET set they run in the interpreter over CPU tensors, on a smaller model: that proves the tests,
not the device.

Run: pytest tests/gpu -m gpu
"""

import os
from dataclasses import replace

import pytest
import torch

from benchmarks.gpu.stand_in import stand_in

stand_in()  # before test files import an executor

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(scope="session")
def device():
    if IS_INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: torch sees none")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def arch(device):
    if device.type != "cuda":
        return "sm_80"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@pytest.fixture(scope="session")
def is_small(device):
    """Whether kernels run in the interpreter, where a pass takes a second."""
    return device.type != "cuda"


@pytest.fixture(scope="session")
def medium(device, arch, is_small):
    """A model of four layers with 1024 columns, room for four sequences of 640 tokens. Tests share its KV memory."""
    from benchmarks.gpu.models import MEDIUM, MICRO, RandomModel

    model = RandomModel(MICRO if is_small else MEDIUM, device, arch, max_model_len=640, num_rows=4)
    yield model
    model.executor.close()


@pytest.fixture(scope="session")
def make_tiny(device, arch):
    """Makes a model of one or two layers; keyword arguments change its ModelConfig."""
    from benchmarks.gpu.models import MICRO, RandomModel

    return lambda **changes: RandomModel(
        replace(MICRO, **changes), device, arch, max_model_len=192, num_rows=2
    )
