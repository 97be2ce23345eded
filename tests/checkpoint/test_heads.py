"""Every published layout of a head reads back as the same configuration and the same tensors.

Cases S4 and S5 (the checkpoint's side), D18 for heads.  Run: pytest tests/checkpoint/test_heads.py
"""

import json
import logging
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.head_cases import TARGET
from support.head_checkpoints import (
    SAFETENSORS_FILE,
    TORCH_FILE,
    write_authors,
    write_folder,
    write_medusa,
    write_sglang,
    write_speculators,
    write_vllm_medusa,
)
from support.tiny_heads import frequent_ids, tiny_eagle, tiny_medusa

from tspec.checkpoint.heads import open_head, read_head, target_ids
from tspec.core.config import RopeConfig, RopeKind
from tspec.core.dtypes import DType
from tspec.core.head_config import HeadFormat, LayerConvention

FILES = (SAFETENSORS_FILE, TORCH_FILE)
EAGLE3 = {
    "plain": {},
    "reduced": {"draft_ids": frequent_ids(60, 25)},
    "one by one": {"fc_norm": True, "norm_output": True, "draft_ids": frequent_ids(60, 25)},
    "together": {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True},
    "own embedding": {"own_embedding": True},
    "qwen3": {"qk_norm": True, "rope_base": 1e6, "draft_ids": frequent_ids(60, 25)},
    "two layers": {"layers": 2, "norm_before_residual": True},
    "biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "fc_bias": True},
    "window": {"window": 8},
    "smaller": {"hidden": 16, "draft_ids": frequent_ids(60, 25)},
}
"""Heads that the layout of the speculators library can hold."""
EAGLE1 = {
    "plain": {},
    "with bias": {"fc_bias": True},
    "own embedding": {"own_embedding": True, "fc_bias": True},
    "two layers": {"layers": 2},
    "qkv bias": {"qkv_bias": True},
}


def assert_holds(folder, head, *, layer_offset=0):
    """The folder reads back as this head; returns its configuration."""
    opened = open_head(folder, TARGET, layer_offset)
    assert (
        set(opened.shapes)
        == set(opened.tensors)
        == set(head.tensors) | ({"d2t"} if head.draft_ids else set())
    )
    for name, value in head.tensors.items():
        loaded = opened.load(name)
        assert torch.equal(loaded, value) and loaded.dtype == value.dtype, name
        assert opened.shapes[name] == tuple(value.shape)
    assert target_ids(opened).tolist() == list(head.draft_ids or range(head.vocab))
    config = opened.config
    assert (config.format is HeadFormat.EAGLE3) == head.is_eagle3
    assert (config.target_hidden_size, config.target_vocab_size) == (32, 60)
    assert config.draft_vocab_size == (len(head.draft_ids) if head.draft_ids else None)
    assert config.num_logits == head.rows and config.fc_width == head.tensors["fc.weight"].shape[1]
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "fc_bias"):
        assert getattr(config, flag) == getattr(head, flag), flag
    assert config.has_own_embedding == head.own_embedding and config.has_own_head == head.own_head
    layer = config.layer
    assert (layer.hidden_size, layer.num_layers, layer.num_heads) == (head.hidden, head.layers, 4)
    assert (layer.num_kv_heads, layer.head_dim, layer.intermediate_size) == (2, 16, 48)
    assert layer.rms_eps == 1e-5 and layer.has_qk_norm == head.qk_norm
    assert (layer.has_qkv_bias, layer.has_o_bias, layer.has_mlp_bias) == (
        head.qkv_bias,
        head.o_bias,
        head.mlp_bias,
    )
    assert layer.sliding_windows == (head.window,) * head.layers
    return config


def without_words(config):
    return replace(config, source="", convention_reason="", layer_convention=None)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", EAGLE3)
def test_eagle3_is_the_same_in_every_layout(tmp_path, name, file):
    head = tiny_eagle(TARGET, 3, **EAGLE3[name])
    configs = [
        assert_holds(write_speculators(tmp_path / "a", head, file=file), head),
        assert_holds(write_sglang(tmp_path / "b", head, file=file), head),
    ]
    if not head.fc_norm and not head.norm_before_fc and not head.norm_before_residual:
        configs.append(assert_holds(write_authors(tmp_path / "c", head, file=file), head))
    assert all(without_words(config) == without_words(configs[0]) for config in configs)
    assert all(file in config.source and "EAGLE-3" in config.source for config in configs)
    assert all(config.aux_layers == head.aux for config in configs)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", EAGLE1)
def test_eagle1_is_the_same_in_every_layout(tmp_path, name, file):
    head = tiny_eagle(TARGET, 1, **EAGLE1[name])
    configs = [
        assert_holds(write_authors(tmp_path / "a", head, file=file), head),
        assert_holds(write_authors(tmp_path / "b", head, file=file, with_bias_key=False), head),
    ]
    if head.layers == 1 and not head.qkv_bias:
        configs.append(assert_holds(write_speculators(tmp_path / "c", head, file=file), head))
    assert all(without_words(config) == without_words(configs[0]) for config in configs)
    first = configs[0]
    assert first.aux_layers == () and not first.has_input_norm and not first.has_final_norm
    assert not first.has_embedding_norm and not first.has_hidden_norm


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_eagle3_head_reads_back_in_any_layout(tmp_path_factory, data):
    flags = (
        "norm_before_residual",
        "norm_before_fc",
        "fc_norm",
        "norm_output",
        "qkv_bias",
        "qk_norm",
        "own_embedding",
    )
    changes = {flag: data.draw(st.booleans(), label=flag) for flag in flags}
    ids = list(frequent_ids(60, data.draw(st.integers(1, 60), label="ids")))
    random.Random(len(ids)).shuffle(ids)
    aux = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4), label="aux")
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    head = tiny_eagle(
        TARGET, 3, layers=data.draw(st.integers(1, 2)), hidden=data.draw(st.sampled_from([16, 32])), aux=tuple(aux),
        draft_ids=tuple(ids) if data.draw(st.booleans()) else None, dtype=dtype, **changes,
    )  # fmt: skip
    write = data.draw(st.sampled_from([write_speculators, write_sglang]))
    folder = write(tmp_path_factory.mktemp("head"), head, file=data.draw(st.sampled_from(FILES)))
    config = assert_holds(folder, head)
    assert config.aux_layers == head.aux
    assert config.layer.dtype.value == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("names", [("embedding_layernorm", "hidden_states_layernorm"), ("enorm", "hnorm")])
def test_eagle1_with_norms_before_fc(tmp_path, names):
    head = tiny_eagle(TARGET, 1, para_norm=True, fc_bias=True)
    write_authors(tmp_path, head)
    tensors = load_file(tmp_path / SAFETENSORS_FILE)
    for ours, theirs in zip(("embedding_layernorm", "hidden_states_layernorm"), names, strict=True):
        tensors[f"{theirs}.weight"] = tensors.pop(f"{ours}.weight")
    write_folder(tmp_path, json.loads((tmp_path / "config.json").read_text()), tensors, SAFETENSORS_FILE)
    config = assert_holds(tmp_path, head)
    assert config.has_embedding_norm and config.has_hidden_norm and not config.has_final_norm


def test_eagle1_of_the_library_with_its_extra_norms(tmp_path):
    head = tiny_eagle(TARGET, 1, extra_norms=True)
    config = assert_holds(write_speculators(tmp_path, head), head)
    assert config.has_embedding_norm and config.has_input_norm and config.has_final_norm
    assert not config.has_hidden_norm and not config.norm_output


# Rotation, context and dtype are the head's own.


def test_rotation_is_never_that_of_the_target(tmp_path):
    head = tiny_eagle(TARGET, 3)
    assert "rope_theta" not in json.loads((write_authors(tmp_path, head) / "config.json").read_text())
    assert read_head(tmp_path, TARGET).layer.rope == RopeConfig(RopeKind.DEFAULT, 10_000.0)
    write_authors(tmp_path, head, rope_theta=500_000.0)
    assert read_head(tmp_path, TARGET).layer.rope == RopeConfig(RopeKind.DEFAULT, 500_000.0)
    write_authors(tmp_path, head, rope_scaling={"type": "linear", "factor": 2.0})
    assert read_head(tmp_path, TARGET).layer.rope == RopeConfig(RopeKind.LINEAR, 10_000.0, 2.0)


def test_2048_positions_do_not_cap_the_context(tmp_path):
    write_authors(tmp_path, tiny_eagle(TARGET, 3))
    assert json.loads((tmp_path / "config.json").read_text())["max_position_embeddings"] == 2048
    assert read_head(tmp_path, TARGET).layer.max_position == TARGET.max_position


def test_a_dynamic_rotation_keeps_the_length_it_is_computed_from(tmp_path):
    write_authors(tmp_path, tiny_eagle(TARGET, 3), rope_scaling={"type": "dynamic", "factor": 2.0})
    assert read_head(tmp_path, TARGET).layer.max_position == 2048


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_dtype_is_that_of_the_weights(tmp_path, dtype):
    write_authors(tmp_path, tiny_eagle(TARGET, 3, dtype=dtype), torch_dtype="float32")
    assert read_head(tmp_path, TARGET).layer.dtype.value == str(dtype).removeprefix("torch.")


# Which hidden states of the target: case S4.


def test_ids_at_the_top_level_are_inputs_of_layers(tmp_path):
    config = read_head(write_speculators(tmp_path, tiny_eagle(TARGET, 3, aux=(0, 5, 12))), TARGET)
    assert config.aux_layers == (0, 5, 12) and config.layer_convention is LayerConvention.INPUT_OF_LAYER
    assert "top level" in config.convention_reason


def test_ids_in_eagle_config_are_outputs_of_layers(tmp_path):
    head = tiny_eagle(TARGET, 3)
    write_sglang(tmp_path, head, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 5, 11]})
    config = read_head(tmp_path, TARGET)
    assert config.aux_layers == (1, 6, 12) and config.layer_convention is LayerConvention.OUTPUT_OF_LAYER
    assert "eagle_config" in config.convention_reason


@pytest.mark.parametrize("write", [write_authors, write_speculators, write_sglang])
def test_without_ids_the_default_follows_from_the_targets_depth(tmp_path, write):
    keys = {} if write is write_authors else {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": {}}
    config = read_head(write(tmp_path, tiny_eagle(TARGET, 3), **keys), TARGET)
    assert config.aux_layers == (2, 6, 9) and config.layer_convention is None
    assert "names no layers" in config.convention_reason


@pytest.mark.parametrize("offset", [-1, 1])
def test_an_offset_tries_the_other_convention(tmp_path, offset):
    write_speculators(tmp_path, tiny_eagle(TARGET, 3, aux=(2, 6, 9)))
    config = read_head(tmp_path, TARGET, offset)
    assert config.aux_layers == (2 + offset, 6 + offset, 9 + offset)
    assert f"layer_offset {offset}" in config.convention_reason


def test_ids_at_the_top_level_that_look_like_outputs_are_reported(tmp_path, caplog):
    write_speculators(
        tmp_path, tiny_eagle(TARGET, 3, aux=(1, 5, 8))
    )  # the other convention's default for 12 layers
    with caplog.at_level(logging.WARNING, logger="tspec"):
        config = read_head(tmp_path, TARGET)
    assert config.aux_layers == (1, 5, 8)
    assert "layer_offset 1" in caplog.text and "by default" in config.convention_reason


@pytest.mark.parametrize(("inner", "is_doubtful"), [([1, 5, 8], False), ([2, 6, 9], True)])
def test_ids_in_both_places_agree_or_are_reported(tmp_path, caplog, inner, is_doubtful):
    head = tiny_eagle(TARGET, 3)
    write_sglang(
        tmp_path, head, eagle_aux_hidden_state_layer_ids=[2, 6, 9],
        eagle_config={"eagle_aux_hidden_state_layer_ids": inner},
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="tspec"):
        config = read_head(tmp_path, TARGET)
    assert config.aux_layers == (2, 6, 9) and bool(caplog.records) == is_doubtful


def test_another_number_of_hidden_states_is_joined(tmp_path):
    head = tiny_eagle(TARGET, 3, aux=(1, 4, 7, 12))
    assert assert_holds(write_speculators(tmp_path, head), head).fc_width == 4 * 32


# Maps of tokens: case S4.


def test_offsets_give_the_targets_ids(tmp_path):
    head = tiny_eagle(TARGET, 3, draft_ids=(3, 7, 8, 59))
    ids = target_ids(open_head(write_authors(tmp_path, head), TARGET))
    assert ids.tolist() == [3, 7, 8, 59] and ids.dtype == np.int32


def test_a_map_of_equal_width_may_permute(tmp_path):
    ids = tuple(np.random.default_rng(0).permutation(60).tolist())
    head = tiny_eagle(TARGET, 3, draft_ids=ids)
    opened = open_head(write_speculators(tmp_path, head), TARGET)
    assert opened.config.draft_vocab_size == 60 and target_ids(opened).tolist() == list(ids)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_a_map_has_either_integer_type(tmp_path, dtype):
    head = tiny_eagle(TARGET, 3, draft_ids=(3, 7, 8, 59))
    write_authors(tmp_path, head)
    tensors = load_file(tmp_path / SAFETENSORS_FILE)
    tensors["d2t"] = tensors["d2t"].to(dtype)
    write_folder(tmp_path, json.loads((tmp_path / "config.json").read_text()), tensors, SAFETENSORS_FILE)
    assert target_ids(open_head(tmp_path, TARGET)).tolist() == [3, 7, 8, 59]


def test_a_head_that_names_no_draft_vocabulary_has_what_its_output_layer_has(tmp_path):
    head = tiny_eagle(TARGET, 3, draft_ids=frequent_ids(60, 25))
    write_authors(tmp_path, head, draft_vocab_size=None)
    assert read_head(tmp_path, TARGET).draft_vocab_size == 25


# The output layer: case D18 for heads.


def test_eagle3_without_an_output_layer_uses_the_targets(tmp_path):
    head = tiny_eagle(TARGET, 3)
    del head.tensors["lm_head.weight"]
    opened = open_head(write_speculators(tmp_path, head), TARGET)
    assert not opened.config.has_own_head and "lm_head.weight" not in opened.shapes


def test_eagle1_with_an_output_layer_uses_its_own(tmp_path):
    head = tiny_eagle(TARGET, 1)
    head.tensors["lm_head.weight"] = torch.ones(60, 32)
    assert read_head(write_authors(tmp_path, head), TARGET).has_own_head


# Medusa.


@pytest.mark.parametrize(
    ("write", "file"),
    [
        (write_medusa, "medusa_lm_head.safetensors"),
        (write_medusa, "medusa_lm_head.pt"),
        (write_medusa, TORCH_FILE),
        (write_vllm_medusa, SAFETENSORS_FILE),
        (write_vllm_medusa, TORCH_FILE),
    ],
)
@pytest.mark.parametrize("changes", [{}, {"num_heads": 5, "blocks": 2}, {"has_bias": False}], ids=str)
def test_medusa_is_the_same_in_both_layouts(tmp_path, write, file, changes):
    heads = tiny_medusa(TARGET, dtype=torch.bfloat16, **changes)
    opened = open_head(write(tmp_path, heads, file=file), TARGET)
    assert set(opened.shapes) == set(heads.tensors)
    assert all(torch.equal(opened.load(name), value) for name, value in heads.tensors.items())
    config = opened.config
    assert (config.num_heads, config.num_layers, config.has_bias) == (
        heads.num_heads,
        heads.blocks,
        heads.has_bias,
    )
    assert (config.hidden_size, config.target_vocab_size, config.draft_vocab_size) == (32, 60, None)
    assert config.dtype is DType.BFLOAT16 and config.format is HeadFormat.MEDUSA and file in config.source
    assert not config.shares_lm_head and target_ids(opened).tolist() == list(range(60))


@pytest.mark.parametrize("whole_rows", [False, True])
def test_medusa_with_a_reduced_vocabulary(tmp_path, whole_rows):
    ids = (5, 0, 59, 17)
    heads = tiny_medusa(TARGET, draft_ids=ids)
    opened = open_head(write_vllm_medusa(tmp_path, heads, whole_rows=whole_rows), TARGET)
    assert opened.config.draft_vocab_size == opened.config.num_logits == 4
    assert target_ids(opened).tolist() == list(ids)
    for name, value in heads.tensors.items():
        assert torch.equal(opened.load(name), value) and opened.shapes[name] == tuple(value.shape)


def test_medusa_heads_that_share_one_output_layer(tmp_path):
    heads = tiny_medusa(TARGET, shares_head=True)
    opened = open_head(write_vllm_medusa(tmp_path, heads), TARGET)
    assert opened.config.shares_lm_head and opened.config.num_heads == 3
    assert [name for name in opened.shapes if name.startswith("lm_heads")] == ["lm_heads.0.weight"]


def test_all_medusa_heads_of_the_file_are_used(tmp_path, caplog):
    """Published configurations name 2 of 5 heads."""
    with caplog.at_level(logging.INFO, logger="tspec"):
        config = read_head(
            write_medusa(tmp_path, tiny_medusa(TARGET, num_heads=5), medusa_num_heads=2), TARGET
        )
    assert config.num_heads == 5 and "2 of the 5" in caplog.text


def test_the_targets_own_keys_beside_medusas_are_not_medusas(tmp_path):
    keys = {"num_hidden_layers": 32, "hidden_size": 32, "vocab_size": 60, "medusa_num_layers": None}
    assert read_head(write_medusa(tmp_path, tiny_medusa(TARGET), **keys), TARGET).num_layers == 1
