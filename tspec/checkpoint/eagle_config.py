"""EAGLE heads: `config.json` and the names of the tensors into an EagleConfig, or a refusal by name.

Layouts: the authors' (EAGLE-1, 2 and 3), SGLang's and SpecForge's (the same with `eagle_config`), and that of the
speculators library (layers in `transformer_layer_config`). What is in the file decides about biases, embedding and
output head, which the keys leave open. Reads no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tspec.checkpoint.aux_layers import read_aux_layers
from tspec.checkpoint.head_schema import RawHead, RawLayer
from tspec.checkpoint.head_tensors import D2T
from tspec.checkpoint.hf_config import FAMILIES, Family, check_layer, head_dim_of, num_kv_heads_of
from tspec.checkpoint.hf_rope import read_rope
from tspec.checkpoint.hf_schema import parse_raw
from tspec.checkpoint.json_object import shown
from tspec.checkpoint.weights import Described, most_common_dtype
from tspec.core.config import ModelConfig, RopeKind
from tspec.core.errors import CheckpointError
from tspec.core.head_config import EagleConfig, HeadFormat
from tspec.core.rope import context_limit

_LAYERS_KEY = "transformer_layer_config"
_UNSUPPORTED = {"dflash": "DFlash", "peagle": "P-EAGLE", "p_eagle": "P-EAGLE", "mtp": "MTP", "nextn": "MTP"}
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True, slots=True)
class HeadFile:
    """What is known of a head before any weight is read.

    path     of config.json
    raw      its keys around the layers; `layer`, those of the layers
    where    what errors about the keys of the layers name
    names    tensors by canonical name
    file     name of the file that holds them
    """

    path: Path
    raw: RawHead
    layer: RawLayer
    where: str
    names: Mapping[str, Described]
    file: str

    @property
    def is_nested(self) -> bool:
        """Whether the layout is that of the speculators library."""
        return self.raw.speculators_model_type is not None


def read_head_file(
    path: Path, data: Mapping[str, Any], names: Mapping[str, Described], file: str
) -> HeadFile:
    """Parse the keys.  Errors: CheckpointError for a key at fault, and for heads that tspec does not run."""
    raw = parse_raw(RawHead, data, str(path))
    _refuse_unsupported(path, data, raw, names)
    where = f"{path}: {_LAYERS_KEY}" if raw.speculators_model_type else str(path)
    layer = parse_raw(RawLayer, data.get(_LAYERS_KEY) if raw.speculators_model_type else data, where)
    check_layer(where, layer)
    return HeadFile(path, raw, layer, where, names, file)


def read_eagle(head: HeadFile, target: ModelConfig | None, layer_offset: int) -> EagleConfig:
    """The configuration of an EAGLE head.

    target        what the head has to fit; None checks nothing, and leaves layers that the file does not name open
    layer_offset  added to the ids of the target's layers
    Errors        CheckpointError naming what does not fit the target: hidden size, vocabulary, layers
    """
    kind = _format(head)
    is_eagle3 = kind is HeadFormat.EAGLE3
    names, raw, hidden = head.names, head.raw, head.layer.hidden_size
    width = raw.target_hidden_size or hidden
    vocab = head.layer.vocab_size
    _check_target(head.path.parent, width, vocab, target)
    has_norms = raw.add_para_norm or "hidden_states_layernorm.weight" in names
    draft_vocab = _draft_vocab_size(head, vocab)
    is_own_size = width != hidden or draft_vocab is not None
    aux = read_aux_layers(head.path, raw, target, layer_offset) if is_eagle3 else None
    flags = {flag: is_eagle3 and _flag(raw, flag) for flag in _FLAGS}
    return EagleConfig(
        format=kind,
        layer=_layer_config(head, target),
        target_hidden_size=width,
        target_vocab_size=vocab,
        draft_vocab_size=draft_vocab,
        aux_layers=aux.layers if aux else (),
        layer_convention=aux.convention if aux else None,
        convention_reason=aux.reason if aux else "",
        fc_bias=_fc_bias(head, kind),
        **flags,
        has_input_norm=is_eagle3 or raw.layernorms,
        has_embedding_norm=not is_eagle3 and (has_norms or raw.layernorms),
        has_hidden_norm=not is_eagle3 and has_norms,
        has_final_norm=is_eagle3 or raw.layernorms,
        has_own_embedding="embed_tokens.weight" in names or width != hidden,
        has_own_head="lm_head.weight" in names or is_own_size,
        source=f"{'EAGLE-3' if is_eagle3 else 'EAGLE-1 or 2'}, {_layout(head)} ({head.file})",
    )


def _refuse_unsupported(
    path: Path, data: Mapping[str, Any], raw: RawHead, names: Mapping[str, Described]
) -> None:
    need, fix = "an EAGLE-1, 2 or 3 head, or Medusa heads", "tspec does not run this kind: use another head."
    claims = [raw.speculators_model_type or "", *raw.architectures]
    claims += ["dflash"] if "dflash_config" in data else []
    claims += ["peagle"] if "mask_hidden" in names or data.get("parallel_drafting") else []
    for claim in claims:
        for word, name in _UNSUPPORTED.items():
            if word in claim.lower():
                raise CheckpointError(f"{path}: kind of head", got=name, need=need, fix=fix)
    if raw.speculators_model_type not in (None, "eagle", "eagle3"):
        got = shown(raw.speculators_model_type)
        raise CheckpointError(f"{path}: key 'speculators_model_type'", got=got, need=need, fix=fix)
    if raw.eagle_config is not None and not raw.eagle_config.use_aux_hidden_state:
        got = "false"
        raise CheckpointError(
            f"{path}: key 'eagle_config.use_aux_hidden_state'", got=got, need="true", fix=fix
        )
    if raw.logit_scale not in (None, 1):
        raise CheckpointError(f"{path}: key 'logit_scale'", got=raw.logit_scale, need="1", fix=fix)


def _format(head: HeadFile) -> HeadFormat:
    if head.is_nested:
        return HeadFormat.EAGLE3 if head.raw.speculators_model_type == "eagle3" else HeadFormat.EAGLE1
    if "layers.0.hidden_norm.weight" in head.names or head.raw.draft_vocab_size is not None:
        return HeadFormat.EAGLE3
    if "fc.weight" in head.names:
        return HeadFormat.EAGLE1
    first = shown(next(iter(head.names), None))
    raise CheckpointError(
        f"tensors of {head.path.parent}",
        got=f"those of no head ({len(head.names)}, as {first})",
        need="'fc.weight', as EAGLE heads have",
        fix="Use a whole model as a draft model, not as a head.",
    )


def _check_target(folder: Path, width: int, vocab: int, target: ModelConfig | None) -> None:
    if target is None:
        return
    fix = "Use a head that was trained for this target."
    for what, got, need in (
        ("hidden size of the head's target", width, target.hidden_size),
        ("vocabulary of the head's target", vocab, target.vocab_size),
    ):
        if got != need:
            raise CheckpointError(f"{folder}: {what}", got=got, need=f"{need}, the target's", fix=fix)


def _draft_vocab_size(head: HeadFile, vocab: int) -> int | None:
    """Rows of the output head where `d2t` maps them, None where they are the target's ids."""
    lm_head = head.names.get("lm_head.weight")
    rows = head.raw.draft_vocab_size or (lm_head.shape[0] if lm_head and lm_head.shape else vocab)
    if rows > vocab:
        raise CheckpointError(
            f"{head.path}: draft vocabulary",
            got=rows,
            need=f"at most {vocab}, the target's",
            fix="Fetch config.json and weights again, from the same revision.",
        )
    return rows if D2T in head.names or rows != vocab else None


def _fc_bias(head: HeadFile, kind: HeadFormat) -> bool:
    """What config.json says, else what is there. EAGLE-3 has no such key: `bias` is not of fc there."""
    says = head.raw.fusion_bias if head.is_nested else head.layer.bias
    if kind is HeadFormat.EAGLE3 or says is None:
        return "fc.bias" in head.names
    return says


def _flag(raw: RawHead, name: str) -> bool:
    for keys in (raw, raw.eagle_config):
        value = getattr(keys, name, None)
        if value is not None:
            return bool(value)
    return False


def _layer_config(head: HeadFile, target: ModelConfig | None) -> ModelConfig:
    """The decoder layers, from the head's own keys alone: rotation is not inherited."""
    raw, attention = head.layer, "layers.0.self_attn"
    says_qk_norm = head.is_nested and raw.model_type == "qwen3"
    has_qk_norm = says_qk_norm or f"{attention}.q_norm.weight" in head.names
    family = next((each for each in FAMILIES.values() if each.name == raw.model_type), Family("llama"))
    rope = read_rope(head.where, raw)
    max_position = raw.max_position_embeddings
    if target is not None and rope.kind is not RopeKind.DYNAMIC:  # whose frequencies depend on it
        max_position = max(max_position, context_limit(target))
    return ModelConfig(
        architecture="qwen3" if has_qk_norm else "llama",
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        num_layers=raw.num_hidden_layers,
        num_heads=raw.num_attention_heads,
        num_kv_heads=num_kv_heads_of(head.where, raw, family),
        head_dim=head_dim_of(head.where, raw, family),
        rms_eps=raw.rms_norm_eps,
        max_position=max_position,
        dtype=most_common_dtype(head.file, head.names),
        rope=rope,
        has_qkv_bias=raw.attention_bias or raw.qkv_bias or f"{attention}.q_proj.bias" in head.names,
        has_o_bias=raw.attention_bias or f"{attention}.o_proj.bias" in head.names,
        has_mlp_bias=raw.mlp_bias or "layers.0.mlp.gate_proj.bias" in head.names,
        has_qk_norm=has_qk_norm,
        sliding_windows=_sliding_windows(head.where, raw),
    )


def _sliding_windows(where: str, raw: RawLayer) -> tuple[int | None, ...]:
    """Those that `layer_types` names for the head's own layers: no family slides by itself here."""
    kinds = raw.layer_types or ["full_attention"] * raw.num_hidden_layers
    if "sliding_attention" not in kinds:
        return (None,) * raw.num_hidden_layers
    is_known = set(kinds) <= {"full_attention", "sliding_attention"} and len(kinds) == raw.num_hidden_layers
    has_window = raw.sliding_window is not None and "sliding_window" in raw.model_fields_set
    if not is_known or not has_window:
        raise CheckpointError(
            f"{where}: key 'layer_types'",
            got=f"{shown(raw.layer_types)}, with sliding_window {raw.sliding_window if has_window else None}",
            need="full_attention or sliding_attention for each layer, and a sliding_window",
            fix="Correct the values.",
        )
    return tuple(raw.sliding_window if kind == "sliding_attention" else None for kind in kinds)


def _layout(head: HeadFile) -> str:
    if head.is_nested:
        return "layout of the speculators library"
    return "its authors' layout" if head.raw.eagle_config is None else "SGLang's layout"
