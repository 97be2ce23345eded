"""tspec: lossless speculative decoding, with the verify pass built like a compiler would.

The public names below load on first use, so that `tspec --help` and `tspec inspect` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tspec.core.constraint import ConstraintState, LogitsConstraint
from tspec.core.errors import (
    CapacityError,
    CaptureError,
    CheckpointError,
    ConfigError,
    ContractError,
    ShapeError,
    TspecError,
)
from tspec.core.sampling import TokenLogprobs
from tspec.core.sampling_params import SamplingParams
from tspec.core.speculative_config import SpeculativeConfig

if TYPE_CHECKING:
    from tspec.async_llm import AsyncLLM
    from tspec.llm import LLM, Chunk, RequestHandle, Result

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CapacityError",
    "CaptureError",
    "CheckpointError",
    "Chunk",
    "ConfigError",
    "ConstraintState",
    "ContractError",
    "LogitsConstraint",
    "RequestHandle",
    "Result",
    "SamplingParams",
    "ShapeError",
    "SpeculativeConfig",
    "TokenLogprobs",
    "TspecError",
]


def __getattr__(name: str) -> Any:
    if name in ("LLM", "Chunk", "RequestHandle", "Result"):
        return getattr(import_module("tspec.llm"), name)
    if name == "AsyncLLM":
        return import_module("tspec.async_llm").AsyncLLM
    raise AttributeError(f"module 'tspec' has no attribute {name!r}")
