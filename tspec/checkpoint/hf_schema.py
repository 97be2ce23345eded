"""What `config.json` and `generation_config.json` may say, as far as tspec reads them: keys, types, ranges.

Types are strict: "32" is not a number, and true is not 1.  Keys that are not here are ignored.  What the keys
mean together, and for which family of models, is `hf_config`'s business.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tspec.checkpoint.json_object import read_object, shown
from tspec.core.errors import CheckpointError

Size = Annotated[int, Field(ge=1, le=2**24)]
Positions = Annotated[int, Field(ge=1, le=2**31 - 1)]
_TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_AtLeastZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Base = Annotated[float, Field(gt=1, allow_inf_nan=False)]
_EosTokenId = _TokenId | list[_TokenId] | None


class Raw(BaseModel):
    """Strict types, unknown keys ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, protected_namespaces=())


class RawRope(Raw):
    """`rope_parameters` or, in older files, `rope_scaling`; and the keys that layer types would add."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: _Base | None = None
    factor: _Positive | None = None
    original_max_position_embeddings: Positions | None = None
    low_freq_factor: _Positive | None = None
    high_freq_factor: _Positive | None = None
    beta_fast: _AtLeastZero | None = None
    beta_slow: _AtLeastZero | None = None
    attention_factor: _Positive | None = None
    mscale: _AtLeastZero | None = None
    mscale_all_dim: _AtLeastZero | None = None
    truncate: bool = True
    partial_rotary_factor: float | None = None
    full_attention: Any = None
    sliding_attention: Any = None


class RawConfig(Raw):
    """`config.json`.  Defaults are those that all four families share in transformers."""

    architectures: list[str] = Field(min_length=1)
    model_type: str | None = None
    vocab_size: Annotated[int, Field(ge=1, le=2**31 - 1)]
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Annotated[int, Field(ge=1, le=10_000)]
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    max_position_embeddings: Positions
    rms_norm_eps: _AtLeastZero = 1e-6
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Positions | None = 4096
    use_sliding_window: bool = False
    max_window_layers: Annotated[int, Field(ge=0)] = 28
    layer_types: list[str] | None = None
    rope_theta: _Base | None = None
    rope_scaling: RawRope | None = None
    rope_parameters: RawRope | None = None
    original_max_position_embeddings: Positions | None = None
    partial_rotary_factor: float | None = None
    eos_token_id: _EosTokenId = None
    bos_token_id: _TokenId | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: Any = None


class RawGenerationConfig(Raw):
    """`generation_config.json`."""

    eos_token_id: _EosTokenId = None
    bos_token_id: _TokenId | None = None


_Model = TypeVar("_Model", bound=Raw)


def read_raw(model: type[_Model], path: Path) -> _Model:
    """The file as `model` has it.  Errors: CheckpointError naming the first key at fault, value and range."""
    return parse_raw(model, read_object(path), str(path))


def parse_raw(model: type[_Model], data: Any, what: str) -> _Model:
    """`data` as `model` has it; `what` names the file in errors.  Errors: as `read_raw`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _fault(what, error) from error


def _fault(what: str, error: ValidationError) -> CheckpointError:
    faults = error.errors(include_url=False)
    first = faults[0]
    if not first["loc"]:
        return CheckpointError(what, got=shown(first["input"]), need="a JSON object", fix="Correct the file.")
    key = first["loc"][0]
    if first["type"] == "missing":
        return CheckpointError(
            f"{what}: key {key!r}", got="no such key", need="a value", fix="Complete the file."
        )
    # alternatives (a number, or a list of them) are separate faults of one key
    needs = dict.fromkeys(_need(each["msg"]) for each in faults if each["loc"][0] == key)
    inner = [str(part) for part in first["loc"][1:] if part in RawRope.model_fields]
    return CheckpointError(
        f"{what}: key {'.'.join([str(key), *inner])!r}",
        got=shown(first["input"]),
        need=" or ".join(needs),
        fix="Correct the value.",
    )


def _need(message: str) -> str:
    return message.removeprefix("Input should be ").replace("less than or equal to", "at most")
