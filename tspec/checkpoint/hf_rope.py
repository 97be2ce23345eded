"""Rotary embedding out of `config.json`: the older layout (`rope_theta`, `rope_scaling`) and the newer one.

Translates keys into a RopeConfig and refuses what tspec cannot rotate; the tables are `tspec.core.rope`'s.
Which key wins follows transformers' `convert_rope_params_to_dict` and `standardize_rope_params`.
"""

from pathlib import Path

from tspec.checkpoint.hf_schema import RawConfig, RawRope
from tspec.core.config import RopeConfig, RopeKind
from tspec.core.errors import CheckpointError

_DEFAULT_BASE = 10_000.0


def read_rope(path: Path | str, raw: RawConfig) -> RopeConfig:
    """The rotary embedding that `config.json` at `path` asks for.

    Errors: CheckpointError for another type than RopeKind has, a partial or per-layer-type rotation, and a
    parameter that the type needs and the file does not give.
    """
    given = _given(raw)
    _refuse_unsupported(path, raw, given)
    kind = RopeKind(given.rope_type or given.type or "default")
    base = given.rope_theta or raw.rope_theta or _DEFAULT_BASE
    if kind is RopeKind.DEFAULT:
        return RopeConfig(base=base)
    original = raw.original_max_position_embeddings or given.original_max_position_embeddings
    original = original or raw.max_position_embeddings
    if kind is RopeKind.YARN:
        return _yarn(raw, given, base, original)
    factor = _needed(path, kind, "factor", given.factor)
    if kind is not RopeKind.LLAMA3:
        return RopeConfig(kind, base, factor)
    low = _needed(path, kind, "low_freq_factor", given.low_freq_factor)
    high = _needed(path, kind, "high_freq_factor", given.high_freq_factor)
    if high <= low:
        raise _bad(path, "high_freq_factor", high, f"more than low_freq_factor ({low})", "Correct the value.")
    return RopeConfig(kind, base, factor, original, low_freq_factor=low, high_freq_factor=high)


def _given(raw: RawConfig) -> RawRope:
    for rope in (raw.rope_scaling, raw.rope_parameters):
        if rope is not None and rope.model_fields_set:
            return rope
    return RawRope()


def _refuse_unsupported(path: Path | str, raw: RawConfig, given: RawRope) -> None:
    kinds = [kind.value for kind in RopeKind]
    name = given.rope_type or given.type or "default"
    if given.full_attention is not None or given.sliding_attention is not None:
        raise _bad(path, "layout", "parameters for each layer type", "one set for all layers", _OTHER_MODEL)
    if name not in kinds:
        raise _bad(path, "type", repr(name), f"one of {', '.join(kinds)}", _OTHER_MODEL)
    for partial in (given.partial_rotary_factor, raw.partial_rotary_factor):
        if partial is not None and partial != 1:
            raise _bad(path, "partial_rotary_factor", partial, "1: heads rotate whole", _OTHER_MODEL)


def _yarn(raw: RawConfig, given: RawRope, base: float, original: int) -> RopeConfig:
    return RopeConfig(
        RopeKind.YARN,
        base,
        given.factor or raw.max_position_embeddings / original,
        original,
        beta_fast=given.beta_fast or 32.0,  # transformers takes 0 for absent here
        beta_slow=given.beta_slow or 1.0,
        attention_factor=given.attention_factor,
        mscale=given.mscale,
        mscale_all_dim=given.mscale_all_dim,
        truncate=given.truncate,
    )


def _needed(path: Path | str, kind: RopeKind, key: str, value: float | None) -> float:
    if value is None:
        raise _bad(path, key, "none", f"a number, for type {kind.value!r}", "Complete the rope parameters.")
    return value


_OTHER_MODEL = "tspec does not support this rotary embedding; use another model."


def _bad(path: Path | str, key: str, got: object, need: str, fix: str) -> CheckpointError:
    return CheckpointError(f"{path}: rope {key}", got=got, need=need, fix=fix)
