"""What a policy's figures have to be for a report: an engine never looks at them, so they are checked here."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tspec.core.errors import ConfigError
from tspec.core.policy import AGAIN, Policy

_Count = Annotated[int, Field(ge=0)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Chance = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Part(BaseModel):
    """Keys that a report does not read are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Pass(_Part):
    rows: Annotated[int, Field(ge=1)]
    nodes: Annotated[int, Field(ge=1)]
    context: _Count
    seconds: _Positive


class _Kernel(_Part):
    kind: str
    shape: Annotated[list[int], Field(max_length=2)]
    count: Annotated[int, Field(ge=1)]
    bytes_moved: _Count
    flops: _Count
    seconds: _Positive


class _Method(_Part):
    chances: list[list[_Chance]]
    reached: list[_Count]


class _Figures(_Part):
    model: str
    max_tokens: _Count
    num_prompts: Annotated[list[int], Field(min_length=2, max_length=2)]
    passes: Annotated[list[_Pass], Field(min_length=1)]
    methods: dict[str, _Method]
    kernels: dict[Annotated[str, Field(pattern="^[0-9]+$")], list[_Kernel]] = {}
    read_gb_s: _Positive = 1.0
    tflops: _Positive = 1.0


def checked_figures(policy: Policy) -> dict[str, Any]:
    """The figures of a policy as a report reads them.  Errors: ConfigError naming the first that cannot be"""
    try:
        found: dict[str, Any] = _Figures.model_validate(dict(policy.figures)).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        got = f"{place[:80]}: {first['msg']}"
        raise ConfigError(
            f"figures of {policy.source}", got=got, need="those of a policy", fix=AGAIN
        ) from error
    return found
