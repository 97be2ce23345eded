"""Policy files: JSON, written whole or not at all; what is damaged or of another version is refused by name."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tspec.checkpoint.hf_config import CONFIG_FILE
from tspec.core.errors import ConfigError, TspecError
from tspec.core.pass_costs import PassCosts
from tspec.core.policy import AGAIN, MethodPolicy, Policy, PolicyKey, RoundCosts
from tspec.core.speculative_config import MAX_TOP_K, METHODS
from tspec.core.tree import MAX_NODES
from tspec.core.whole_files import replace_text

SCHEMA = 1
MAX_BYTES = 16 << 20
MAX_TIMES = 64
MAX_CLASSES = 1024

_Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
_Chance = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Ratio = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]
_Times = Annotated[list[_Seconds], Field(min_length=1, max_length=MAX_TIMES)]
_Nodes = Annotated[int, Field(ge=1, le=1 << 16)]
_Text = Annotated[str, Field(max_length=500)]


class _Strict(BaseModel):
    """Strict types, and no key that is not here."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())


class _Key(_Strict):
    device: _Text
    backend: _Text
    dtype: _Text
    threads: Annotated[int, Field(ge=1, le=1 << 16)]
    model: _Text
    libraries: _Text


class _Costs(_Strict):
    nodes: Annotated[list[_Nodes], Field(min_length=1, max_length=MAX_TIMES)]
    seconds: _Times
    context_s: _Times
    is_padded: bool
    ask_s: _Seconds


class _Rounds(_Strict):
    first_s: _Seconds
    level_s: _Seconds
    token_s: _Seconds


class _Method(_Strict):
    num_candidates: Annotated[int, Field(ge=1, lt=MAX_NODES)]
    depth: Annotated[int, Field(ge=1, lt=MAX_NODES)] | None
    width: Annotated[int, Field(ge=1, le=MAX_TOP_K)]
    tree: Annotated[list[int], Field(min_length=1, max_length=MAX_NODES)]
    predicted_speed_up: _Ratio
    measured_speed_up: _Ratio | None
    model: _Text | None
    costs: _Rounds | None


class _File(_Strict):
    schema_: int = Field(alias="schema")
    key: _Key
    costs: _Costs
    priors: dict[_Text, Annotated[list[_Chance], Field(min_length=1, max_length=MAX_CLASSES)]]
    methods: dict[_Text, _Method]
    figures: dict[str, Any]


def config_hash(folder: Path) -> str:
    """What tells a model's configuration from others. Errors: ConfigError for a folder without one."""
    try:
        data = (folder / CONFIG_FILE).read_bytes()
    except OSError as error:
        raise ConfigError(
            str(folder / CONFIG_FILE), got=error.strerror, need="a readable file", fix="Name another folder."
        ) from error
    return hashlib.sha256(data).hexdigest()[:16]


def write_policy(file: Path, policy: Policy) -> None:
    """Write a policy; whoever reads finds the old file or the new one. Errors: ConfigError"""
    methods = {name: asdict(each) for name, each in policy.methods.items()}
    content = {
        "schema": SCHEMA,
        "key": asdict(policy.key),
        "costs": policy.costs.as_json(),
        "priors": {name: list(each) for name, each in policy.priors.items()},
        "methods": methods,
        "figures": dict(policy.figures),
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(
            str(file), got=error.strerror, need="a file to write", fix="Name another path."
        ) from error


def read_policy(file: Path) -> Policy:
    """Read a policy file.

    Errors   ConfigError, naming the place, for one that is missing, damaged, no policy, or of another version
    """
    raw = _raw(file)
    try:
        costs = PassCosts(
            tuple(raw.costs.nodes),
            tuple(raw.costs.seconds),
            tuple(raw.costs.context_s),
            raw.costs.is_padded,
            raw.costs.ask_s,
        )
    except TspecError as error:
        raise _bad(file, f"costs that cannot be ({error})") from error
    for name, each in raw.methods.items():
        if name not in METHODS:
            raise _bad(file, f"a method {name[:40]!r}")
        _check_tree(file, name, each.tree)
    return Policy(
        PolicyKey(**raw.key.model_dump()),
        costs,
        {name: tuple(each) for name, each in raw.priors.items()},
        {name: _method(each) for name, each in raw.methods.items()},
        raw.figures,
        str(file),
    )


def _raw(file: Path) -> _File:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise _bad(file, f"{file.stat().st_size} bytes")
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"policy {file}", got=error.strerror, need="a readable file", fix="Name another file."
        ) from error
    except (ValueError, RecursionError) as error:
        raise _bad(file, f"no JSON ({error})") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise _bad(file, "no policy")
    if content["schema"] != SCHEMA:
        raise _bad(file, f"schema {str(content['schema'])[:40]}")
    try:
        return _File.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _bad(file, f"{place[:80]}: {first['msg']}") from error


def _check_tree(file: Path, name: str, tree: list[int]) -> None:
    if tree[0] != -1 or any(not 0 <= parent < node for node, parent in enumerate(tree) if node):
        raise _bad(file, f"a tree of {name} whose parents do not come before their children")


def _method(raw: _Method) -> MethodPolicy:
    costs = None if raw.costs is None else RoundCosts(**raw.costs.model_dump())
    plain = raw.model_dump(exclude={"costs", "tree"})
    return MethodPolicy(**plain, tree=tuple(raw.tree), costs=costs)


def _bad(file: Path, got: str) -> ConfigError:
    return ConfigError(f"policy {file}", got=got, need=f"a policy of schema {SCHEMA}", fix=AGAIN)
