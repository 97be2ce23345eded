"""`config.json` and `generation_config.json` into a ModelConfig.  Nothing after this sees Hugging Face keys.

Says what transformers would compute for these files, or refuses by name; it never guesses.
"""

from dataclasses import dataclass
from pathlib import Path

from tspec.checkpoint.hf_rope import read_rope
from tspec.checkpoint.hf_schema import RawConfig, RawGenerationConfig, read_raw
from tspec.checkpoint.index import check_folder
from tspec.checkpoint.json_object import shown
from tspec.core.config import ModelConfig, RopeKind
from tspec.core.dtypes import WEIGHT_DTYPES, DType
from tspec.core.errors import CheckpointError

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class Family:
    """A family's name in tspec, and its defaults in transformers for keys that the file leaves out.

    num_kv_heads None means as many as query heads; head_dim None means hidden_size / num_attention_heads.
    """

    name: str
    num_kv_heads: int | None = None
    head_dim: int | None = None


FAMILIES = {
    "LlamaForCausalLM": Family("llama"),
    "MistralForCausalLM": Family("mistral", num_kv_heads=8),
    "Qwen2ForCausalLM": Family("qwen2", num_kv_heads=32),
    "Qwen3ForCausalLM": Family("qwen3", num_kv_heads=32, head_dim=128),
}
"""The supported families, by the name in `architectures`."""


def read_config(folder: str | Path) -> ModelConfig:
    """The configuration of the checkpoint in `folder`.

    `eos_token_ids` joins those of both files: whichever documents an id, it ends a text. `dtype` is what the
    file says, float32 where it says nothing; what the weights are is `checkpoint_dtype`'s answer.
    Errors: CheckpointError naming file, key, value and range for whatever tspec cannot run as transformers
    does.
    """
    check_folder(Path(folder))
    path = Path(folder) / CONFIG_FILE
    raw = read_raw(RawConfig, path)
    generation = RawGenerationConfig()
    if (Path(folder) / GENERATION_FILE).exists():
        generation = read_raw(RawGenerationConfig, Path(folder) / GENERATION_FILE)
    family = _family(path, raw)
    head_dim = head_dim_of(path, raw, family)
    has_qkv_bias, has_o_bias, has_mlp_bias = _biases(family, raw)
    bos = raw.bos_token_id if raw.bos_token_id is not None else generation.bos_token_id
    return ModelConfig(
        architecture=family.name,
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        num_layers=raw.num_hidden_layers,
        num_heads=raw.num_attention_heads,
        num_kv_heads=num_kv_heads_of(path, raw, family),
        head_dim=head_dim,
        rms_eps=raw.rms_norm_eps,
        max_position=raw.max_position_embeddings,
        dtype=_dtype(path, raw),
        rope=read_rope(path, raw),
        tie_word_embeddings=raw.tie_word_embeddings,
        has_qkv_bias=has_qkv_bias,
        has_o_bias=has_o_bias,
        has_mlp_bias=has_mlp_bias,
        has_qk_norm=family.name == "qwen3",
        sliding_windows=_sliding_windows(path, raw, family),
        eos_token_ids=_eos_token_ids(raw, generation),
        bos_token_id=bos,
    )


def _family(path: Path, raw: RawConfig) -> Family:
    supported = ", ".join(FAMILIES)
    family = FAMILIES.get(raw.architectures[0])
    if family is None:
        fix = "Use a model of a supported architecture."
        raise _bad(path, "architectures", shown(raw.architectures), f"one of {supported}", fix)
    if raw.model_type not in (None, family.name):
        need = f"{family.name!r}, as architectures says {raw.architectures[0]}"
        raise _bad(path, "model_type", shown(raw.model_type), need, "Make the two keys agree.")
    check_layer(path, raw)
    return family


def check_layer(path: Path | str, raw: RawConfig) -> None:
    """Raise CheckpointError for quantised weights, and for an MLP without SiLU."""
    if raw.quantization_config is not None:
        method = raw.quantization_config
        if isinstance(method, dict):
            method = method.get("quant_method", method)
        fix = "Use the unquantised checkpoint, or dequantise it with transformers."
        raise _bad(path, "quantization_config", shown(method), "weights in F32, BF16 or F16", fix)
    if raw.hidden_act != "silu":
        raise _bad(path, "hidden_act", shown(raw.hidden_act), "'silu'", "Use a model with a SiLU MLP.")


def num_kv_heads_of(path: Path | str, raw: RawConfig, family: Family) -> int:
    """The KV heads of each layer.  Errors: CheckpointError unless they divide the query heads."""
    is_absent = "num_key_value_heads" not in raw.model_fields_set
    num_kv_heads = raw.num_key_value_heads or (family.num_kv_heads if is_absent else None)
    num_kv_heads = num_kv_heads or raw.num_attention_heads
    if raw.num_attention_heads % num_kv_heads:
        need = f"a divisor of num_attention_heads ({raw.num_attention_heads})"
        raise _bad(path, "num_key_value_heads", num_kv_heads, need)
    return num_kv_heads


def head_dim_of(path: Path | str, raw: RawConfig, family: Family) -> int:
    """Elements of an attention head.  Errors: CheckpointError for an odd number, or none that follows."""
    head_dim = raw.head_dim or family.head_dim
    if head_dim is None:
        head_dim, rest = divmod(raw.hidden_size, raw.num_attention_heads)
        if rest:
            need = f"a multiple of num_attention_heads ({raw.num_attention_heads}), as there is no head_dim"
            raise _bad(path, "hidden_size", raw.hidden_size, need)
    if head_dim % 2:
        raise _bad(path, "head_dim", head_dim, "an even number: rotary embedding turns pairs")
    if head_dim == 2 and read_rope(path, raw).kind is RopeKind.DYNAMIC:
        raise _bad(path, "head_dim", head_dim, "at least 4 for rope type 'dynamic'")
    return head_dim


def _biases(family: Family, raw: RawConfig) -> tuple[bool, bool, bool]:
    """Which projections carry a bias: (q, k and v; o; MLP)."""
    match family.name:
        case "llama":
            return raw.attention_bias, raw.attention_bias, raw.mlp_bias
        case "qwen2":
            return True, False, False
        case "qwen3":
            return raw.attention_bias, raw.attention_bias, False
        case _:
            return False, False, False


def _sliding_windows(path: Path, raw: RawConfig, family: Family) -> tuple[int | None, ...]:
    """One entry a layer. As in transformers, llama has none, mistral all, qwen those from some layer on."""
    layers = range(raw.num_hidden_layers)
    match family.name:
        case "llama":
            return tuple(None for _ in layers)
        case "mistral":
            return tuple(raw.sliding_window for _ in layers)
    window = raw.sliding_window if raw.use_sliding_window else None
    if raw.layer_types is None:
        return tuple(window if layer >= raw.max_window_layers else None for layer in layers)
    if len(raw.layer_types) != raw.num_hidden_layers:
        need = f"{raw.num_hidden_layers}, as num_hidden_layers says"
        raise _bad(path, "layer_types", f"{len(raw.layer_types)} entries", need)
    for layer_type in raw.layer_types:
        if layer_type not in ("full_attention", "sliding_attention"):
            raise _bad(path, "layer_types", shown(layer_type), "full_attention or sliding_attention")
        if layer_type == "sliding_attention" and window is None:
            need = "use_sliding_window true and a sliding_window, as layer_types has sliding layers"
            raise _bad(path, "sliding_window", "no window", need)
    return tuple(window if kind == "sliding_attention" else None for kind in raw.layer_types)


def _eos_token_ids(raw: RawConfig, generation: RawGenerationConfig) -> tuple[int, ...]:
    """Those of generation_config.json first, then those that only config.json has."""
    tokens: list[int] = []
    for given in (generation.eos_token_id, raw.eos_token_id):
        tokens += given if isinstance(given, list) else [] if given is None else [given]
    return tuple(dict.fromkeys(tokens))


def _dtype(path: Path, raw: RawConfig) -> DType:
    name = raw.dtype or raw.torch_dtype or DType.FLOAT32.value
    known = {dtype.value: dtype for dtype in WEIGHT_DTYPES}
    if name not in known:
        raise _bad(path, "dtype", shown(name), f"one of {', '.join(known)}")
    return known[name]


def _bad(
    path: Path | str, key: str, got: object, need: str, fix: str = "Correct the value."
) -> CheckpointError:
    return CheckpointError(f"{path}: key {key!r}", got=got, need=need, fix=fix)
