"""Kernels of the cuda backend in the Triton interpreter: collected only where TRITON_INTERPRET is set.

The variable is read when triton defines a kernel, so these tests need a process of their own. Asking for them
without it is an error, not a skip; a run of the whole suite leaves the folder out.

Run: TRITON_INTERPRET=1 pytest tests/interpret
"""

import os
from pathlib import Path

import pytest
import torch

from tspec.runtime import cuda_executor
from tspec.runtime.cuda_bind import DeviceModel

FOLDER = Path(__file__).parent
IS_ON = os.environ.get("TRITON_INTERPRET") == "1"

if not IS_ON:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config) -> None:
    """Refuse a run that names this folder, or a file of it, without the variable."""
    named = [Path(config.invocation_params.dir, word.split("::")[0]).resolve() for word in config.args]
    if not IS_ON and any(FOLDER in (path, *path.parents) for path in named):
        raise pytest.UsageError(
            "TRITON_INTERPRET: got nothing, need 1. Run TRITON_INTERPRET=1 pytest tests/interpret."
        )


@pytest.fixture
def cuda_in_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines with `device="cuda"` are built on the CPU's memory; their launches run one by one."""

    def model(device, arch, weights, k_cache, v_cache, features=None):
        return DeviceModel(device, arch, weights, k_cache, v_cache, features=features)

    monkeypatch.setattr(cuda_executor, "find_device", lambda: (torch.device("cpu"), "sm_80", 1 << 30))
    monkeypatch.setattr(cuda_executor, "device_model", model)
