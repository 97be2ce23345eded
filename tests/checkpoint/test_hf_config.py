"""config.json is read as transformers reads it, in both layouts, or refused by key, value and range.

Cases D9 and D20 (the configuration's side).  Run: pytest tests/checkpoint/test_hf_config.py
"""

import json

import pytest
import torch
import transformers
from support.tiny_models import ARCHITECTURES, tiny_checkpoint

from tspec.checkpoint.hf_config import FAMILIES, read_config
from tspec.checkpoint.weights import open_checkpoint
from tspec.core.config import RopeConfig, RopeKind
from tspec.core.dtypes import DType
from tspec.core.errors import CheckpointError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"]}
LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture
def read(tmp_path):
    def read(config, generation=None):
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return read_config(tmp_path)

    return read


@pytest.fixture
def refusal(read):
    def refusal(config, generation=None) -> str:
        with pytest.raises(CheckpointError) as caught:
            read(config, generation)
        message = str(caught.value)
        assert "config.json" in message and "\n" not in message and len(message) < 1000
        return message

    return refusal


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_saved_model_reads_back(tmp_path, architecture):
    tiny_checkpoint(tmp_path, architecture, kv_heads=1, head_dim=24, tie=True, dtype=torch.bfloat16)
    config = read_config(tmp_path)
    assert config.architecture == architecture
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.group_size) == (4, 1, 24, 4)
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (64, 96, 2)
    assert (config.vocab_size, config.max_position, config.rms_eps) == (128, 256, 1e-6)
    assert config.dtype is DType.BFLOAT16 and config.tie_word_embeddings
    assert config.rope == RopeConfig() and config.sliding_windows == (None, None)
    assert config.eos_token_ids == () and config.bos_token_id is None


@pytest.mark.parametrize("attention_bias", [False, True])
@pytest.mark.parametrize("mlp_bias", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_biases_are_where_transformers_puts_them(tmp_path, architecture, attention_bias, mlp_bias):
    tiny_checkpoint(tmp_path, architecture, attention_bias=attention_bias, mlp_bias=mlp_bias)
    config, layer = read_config(tmp_path), "model.layers.1."
    names = open_checkpoint(tmp_path).tensors
    for projection in ("q_proj", "k_proj", "v_proj"):
        assert (f"{layer}self_attn.{projection}.bias" in names) == config.has_qkv_bias
    assert (f"{layer}self_attn.o_proj.bias" in names) == config.has_o_bias
    assert (f"{layer}mlp.down_proj.bias" in names) == config.has_mlp_bias
    assert (f"{layer}self_attn.q_norm.weight" in names) == config.has_qk_norm


@pytest.mark.parametrize("use", [False, True])
@pytest.mark.parametrize(
    "windows",
    [
        {"sliding_window": 16},
        {"sliding_window": None},
        {"sliding_window": 16, "max_window_layers": 2},
        {"sliding_window": 16, "max_window_layers": 0},
        {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"] * 2},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("base", [LLAMA, MISTRAL, QWEN2, QWEN3], ids=lambda base: base["architectures"][0])
def test_layers_slide_where_transformers_slides(read, refusal, tmp_path, base, windows, use):
    """Asked of the attention modules and of the rule by which the model picks its masks."""
    raw = base | windows | {"use_sliding_window": use, "head_dim": 16}
    family = FAMILIES[base["architectures"][0]].name
    if family.startswith("qwen") and not use and "layer_types" in windows:
        assert "use_sliding_window" in refusal(raw)  # transformers fails on it, when it masks
        return
    ours = read(raw).sliding_windows
    config = transformers.AutoConfig.for_model(family, **without(raw, "architectures"))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    if family == "mistral":
        theirs = (config.sliding_window,) * 4
    else:
        theirs = tuple(getattr(layer.self_attn, "sliding_window", None) for layer in model.model.layers)
    assert ours == theirs


def test_a_sliding_layer_sees_itself_and_the_window_minus_one_before(tmp_path):
    """What ModelConfig documents, asked of transformers: a changed token shows until 15 positions later."""
    model = tiny_checkpoint(tmp_path, "mistral", layers=1, sliding_window=16)
    assert read_config(tmp_path).sliding_windows == (16,)
    tokens = torch.arange(40)[None]
    changed = tokens.clone()
    changed[0, 10] = 99
    with torch.no_grad():
        differs = (model(tokens).logits != model(changed).logits).any(-1)[0]
    assert differs[25] and not differs[26:].any()


# Rotary embedding, in both layouts


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({}, RopeConfig()),
        ({"rope_theta": 5e5}, RopeConfig(base=5e5)),
        ({"rope_theta": 500000}, RopeConfig(base=5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(base=5e5)),
        ({"rope_theta": 5e5, "rope_scaling": {}}, RopeConfig(base=5e5)),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, RopeConfig(base=5e5)),
        ({"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 7.0}, RopeConfig(base=5e5)),
        (
            {"rope_scaling": {"type": "linear", "factor": 4}, "rope_theta": 7.0},
            RopeConfig(RopeKind.LINEAR, 7.0, 4.0),
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "type": "x", "factor": 4}},
            RopeConfig(RopeKind.LINEAR, factor=4.0),
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, RopeConfig(RopeKind.DYNAMIC, factor=2.0)),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3_SCALING}},
            RopeConfig(RopeKind.LLAMA3, factor=8.0, original_max_position=64),
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            RopeConfig(RopeKind.YARN, factor=4.0, original_max_position=256),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 0, "mscale": 1, "truncate": False}},
            RopeConfig(RopeKind.YARN, factor=4.0, original_max_position=256, mscale=1.0, truncate=False),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": None, "original_max_position_embeddings": 64}},
            RopeConfig(RopeKind.YARN, factor=4.0, original_max_position=64),
        ),
        (
            {
                "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
                "original_max_position_embeddings": 128,
            },
            RopeConfig(RopeKind.YARN, factor=2.0, original_max_position=128),
        ),
    ],
    ids=str,
)
def test_both_rope_layouts_read_as_transformers_standardises_them(read, keys, rope):
    assert read(LLAMA | keys).rope == rope
    config = transformers.LlamaConfig(**without(LLAMA, "architectures"), **json.loads(json.dumps(keys)))
    config.standardize_rope_params()  # as every function that computes frequencies does first
    theirs = config.rope_parameters
    assert theirs["rope_type"] == rope.kind.value and theirs["rope_theta"] == rope.base
    if theirs.get("factor") is not None:
        assert theirs["factor"] == rope.factor
    if "original_max_position_embeddings" in theirs:
        assert theirs["original_max_position_embeddings"] == rope.original_max_position


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "'longrope'"),
        ({"rope_scaling": {"type": "su"}}, "'su'"),
        ({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "'proportional'"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "'mrope'"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "dynamic"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "greater than 0"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "'rope_scaling.factor'"),
        (
            {"rope_scaling": {"type": "llama3", **without(LLAMA3_SCALING, "low_freq_factor")}},
            "low_freq_factor",
        ),
        ({"rope_scaling": {"type": "llama3", **LLAMA3_SCALING, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "layer type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
            "partial_rotary_factor",
        ),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": 2}, "head_dim"),
    ],
    ids=str,
)
def test_rope_that_tspec_cannot_turn_is_refused_by_name(refusal, keys, words):
    assert words in refusal(LLAMA | keys)


def test_head_dim_is_taken_from_the_file_or_from_hidden_size(read):
    assert read(LLAMA).head_dim == 16
    assert read(LLAMA | {"head_dim": None}).head_dim == 16
    odd = {"hidden_size": 512, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 56}
    assert (read(MISTRAL | odd).head_dim, read(LLAMA | odd).head_dim) == (56, 56)


def test_defaults_of_the_family_fill_what_the_file_leaves_out(read):
    assert read(without(LLAMA, "num_key_value_heads")).num_kv_heads == 4
    assert read(LLAMA | {"num_key_value_heads": None}).num_kv_heads == 4
    assert read(without(MISTRAL, "num_key_value_heads") | {"num_attention_heads": 16}).num_kv_heads == 8
    assert read(MISTRAL | {"num_key_value_heads": None}).num_kv_heads == 4
    assert read(QWEN3).head_dim == 128
    assert read(LLAMA).rms_eps == 1e-6 and not read(LLAMA).tie_word_embeddings


@pytest.mark.parametrize(
    ("keys", "need"),
    [
        ({"num_attention_heads": 0}, "greater than or equal to 1"),
        ({"num_attention_heads": -4}, "greater than or equal to 1"),
        ({"num_attention_heads": "4"}, "a valid integer"),
        ({"num_attention_heads": 4.5}, "a valid integer"),
        ({"num_attention_heads": True}, "a valid integer"),
        ({"num_attention_heads": [4]}, "a valid integer"),
        ({"hidden_size": None}, "a valid integer"),
        ({"hidden_size": 10**30}, "at most"),
        ({"vocab_size": 0}, "greater than or equal to 1"),
        ({"vocab_size": 2**31}, "at most"),
        ({"intermediate_size": -1}, "greater than or equal to 1"),
        ({"num_hidden_layers": 10**9}, "at most 10000"),
        ({"num_key_value_heads": 0}, "greater than or equal to 1"),
        ({"num_key_value_heads": 3}, "a divisor of num_attention_heads (4)"),
        ({"num_key_value_heads": 8}, "a divisor of num_attention_heads (4)"),
        ({"hidden_size": 66}, "a multiple of num_attention_heads (4)"),
        ({"head_dim": 15}, "an even number"),
        ({"hidden_size": 60}, "an even number"),
        ({"max_position_embeddings": 0}, "greater than or equal to 1"),
        ({"rms_norm_eps": -1e-6}, "greater than or equal to 0"),
        ({"rms_norm_eps": float("nan")}, "finite"),
        ({"hidden_act": "gelu"}, "'silu'"),
        ({"tie_word_embeddings": "yes"}, "a valid boolean"),
        ({"sliding_window": 0}, "greater than or equal to 1"),
        ({"dtype": "float8_e4m3fn"}, "one of float32, bfloat16, float16"),
        ({"architectures": []}, "at least 1 item"),
        ({"architectures": "LlamaForCausalLM"}, "a valid list"),
        ({"architectures": None}, "a valid list"),
        ({"bos_token_id": -1}, "greater than or equal to 0"),
        ({"eos_token_id": "</s>"}, "a valid integer"),
        ({"eos_token_id": [1, -2]}, "greater than or equal to 0"),
    ],
    ids=str,
)
def test_an_impossible_value_is_refused_with_its_key_and_range(refusal, keys, need):
    message = refusal(LLAMA | keys)
    key = next(iter(keys))
    assert (key if key != "hidden_size" or need != "an even number" else "head_dim") in message
    assert need in message


@pytest.mark.parametrize("key", without(LLAMA, "num_key_value_heads"))
def test_a_missing_key_is_named(refusal, key):
    assert f"key '{key}': got no such key" in refusal(without(LLAMA, key))


@pytest.mark.parametrize(
    ("layer_types", "words"),
    [
        (["full_attention"] * 3, "4, as num_hidden_layers says"),
        (["full_attention"] * 3 + ["chunked_attention"], "'chunked_attention'"),
        (["full_attention"] * 3 + ["sliding_attention"], "use_sliding_window"),
    ],
)
def test_layer_types_that_do_not_fit_are_refused(refusal, layer_types, words):
    assert words in refusal(QWEN2 | {"layer_types": layer_types})


def test_keys_that_tspec_does_not_read_are_ignored(read):
    assert read(LLAMA | {"use_cache": True, "pretraining_tp": 1, "auto_map": {"x": [1]}}) == read(LLAMA)


def test_an_unknown_architecture_lists_the_supported_ones(refusal):
    message = refusal(LLAMA | {"architectures": ["GPT2LMHeadModel"]})
    assert "GPT2LMHeadModel" in message and all(name in message for name in FAMILIES)


def test_a_model_type_that_contradicts_the_architecture_is_refused(refusal, read):
    assert read(LLAMA | {"model_type": "llama"}).architecture == "llama"
    assert "model_type" in refusal(LLAMA | {"model_type": "mistral"})


@pytest.mark.parametrize("given", [{"quant_method": "gptq", "bits": 4}, {"bits": 4}, "fp8"], ids=str)
def test_a_quantised_checkpoint_is_refused_by_its_method(refusal, given):
    message = refusal(LLAMA | {"quantization_config": given})
    assert (
        "quantization_config" in message
        and str(given if given == "fp8" else next(iter(given.values()))) in message
    )


# End-of-sequence ids, case D9


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({}, None, ()),
        ({"eos_token_id": None}, {}, ()),
        ({"eos_token_id": []}, {"eos_token_id": None}, ()),
        ({"eos_token_id": 5}, None, (5,)),
        ({"eos_token_id": [5, 6]}, None, (5, 6)),
        ({"eos_token_id": 5}, {}, (5,)),
        ({}, {"eos_token_id": 7}, (7,)),
        ({"eos_token_id": 5}, {"eos_token_id": [7, 5]}, (7, 5)),
        ({"eos_token_id": 5}, {"eos_token_id": [7, 8]}, (7, 8, 5)),
        ({"eos_token_id": [5, 5]}, {"eos_token_id": 0}, (0, 5)),
    ],
    ids=str,
)
def test_an_id_that_either_file_documents_ends_a_text(read, config, generation, expected):
    assert read(LLAMA | config, generation).eos_token_ids == expected


def test_a_bad_id_in_generation_config_is_refused_with_that_file(refusal):
    assert "generation_config.json: key 'eos_token_id'" in refusal(LLAMA, {"eos_token_id": "</s>"})


def test_the_first_token_comes_from_config_before_generation_config(read):
    assert read(LLAMA | {"bos_token_id": 0}, {"bos_token_id": 2}).bos_token_id == 0
    assert read(LLAMA, {"bos_token_id": 2}).bos_token_id == 2


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({}, DType.FLOAT32),
        ({"torch_dtype": "bfloat16"}, DType.BFLOAT16),
        ({"dtype": "float16"}, DType.FLOAT16),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, DType.FLOAT16),
        ({"dtype": None, "torch_dtype": "bfloat16"}, DType.BFLOAT16),
    ],
    ids=str,
)
def test_the_dtype_is_read_under_both_names(read, keys, dtype):
    assert read(LLAMA | keys).dtype is dtype


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", "null", '{"a": 1, "a": 2}', "[" * 100_000], ids=lambda text: repr(text[:9])
)
def test_a_config_that_is_no_json_object_is_refused(refusal, text):
    refusal(text)


def test_a_config_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(json.dumps(LLAMA).encode("utf-16"))
    with pytest.raises(CheckpointError, match=r"config\.json.*UTF-8"):
        read_config(tmp_path)


def test_a_folder_without_config_and_no_folder_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json: got no such file"):
        read_config(tmp_path)
    with pytest.raises(CheckpointError, match="no such path"):
        read_config(tmp_path / "absent")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(tmp_path)
