"""Folders that hold no head that tspec runs: other kinds, absurd keys, no weights; and Medusa heads that do not fit.

Cases S8, D22.  Run: pytest tests/checkpoint/test_head_kinds.py
"""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.head_cases import TARGET, change_tensors
from support.head_checkpoints import (
    SAFETENSORS_FILE,
    TORCH_FILE,
    write_authors,
    write_folder,
    write_medusa,
    write_speculators,
    write_vllm_medusa,
)
from support.tiny_heads import tiny_eagle, tiny_medusa
from support.tiny_models import tiny_checkpoint

from tspec.checkpoint.head_kind import is_head
from tspec.checkpoint.head_schema import RawHead, RawLayer, RawMedusa
from tspec.checkpoint.heads import open_head
from tspec.core.errors import CheckpointError


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"architectures": ["DFlashDraftModel"]}, "DFlash"),
        ({"dflash_config": {"target_layer_ids": [1, 9, 17]}}, "DFlash"),
        ({"speculators_model_type": "dflash"}, "DFlash"),
        ({"architectures": ["PEagleDraftModel"]}, "P-EAGLE"),
        ({"parallel_drafting": True}, "P-EAGLE"),
        ({"speculators_model_type": "mtp"}, "MTP"),
        ({"speculators_model_type": "hydra"}, "hydra"),
        ({"architectures": ["DeepseekV3ForCausalLMNextN"]}, "MTP"),
        ({"logit_scale": 0.5}, "logit_scale"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
    ],
    ids=str,
)
def test_kinds_that_tspec_does_not_run_are_named(tmp_path, refusal, keys, name):
    write_speculators(tmp_path, tiny_eagle(TARGET, 3), **keys)
    assert name in refusal()


def test_p_eagle_is_known_by_its_mask_too(tmp_path, refusal):
    head = tiny_eagle(TARGET, 3)
    head.tensors["mask_hidden"] = torch.ones(1, 96)
    write_authors(tmp_path, head)
    assert "P-EAGLE" in refusal()


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}, "layer_types"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"eagle_aux_hidden_state_layer_ids": [2, -1, 3]}, "eagle_aux_hidden_state_layer_ids"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, "eagle_aux_hidden_state_layer_ids"),
        ({"eagle_config": [1]}, "eagle_config"),
        ({"norm_output": "yes"}, "norm_output"),
    ],
    ids=str,
)
def test_keys_that_cannot_be_are_named(tmp_path, refusal, keys, word):
    write_authors(tmp_path, tiny_eagle(TARGET, 3), **keys)
    assert word in refusal()


@pytest.mark.parametrize("layer", [None, 5, [], {}], ids=str)
def test_layers_that_are_no_configuration_are_named(tmp_path, refusal, layer):
    write_speculators(tmp_path, tiny_eagle(TARGET, 3), transformer_layer_config=layer)
    assert "transformer_layer_config" in refusal()


def test_a_whole_model_is_no_head(tmp_path, refusal):
    tiny_checkpoint(tmp_path, "llama", hidden=32, vocab=60)
    assert "those of no head" in refusal() and "draft model" in refusal()


@pytest.mark.parametrize(
    "file", [None, "optimizer.bin", "pytorch_model.bin.index.json", "model-00001-of-00002.safetensors"]
)
def test_a_folder_without_weights(tmp_path, refusal, file):
    write_authors(tmp_path, tiny_eagle(TARGET, 1))
    (tmp_path / SAFETENSORS_FILE).unlink()
    if file is not None:
        (tmp_path / file).write_bytes(b"{}")
    assert "weights of the head" in refusal() and "pytorch_model.bin" in refusal()


def test_an_index_that_names_a_missing_shard(tmp_path, refusal):
    write_authors(tmp_path, tiny_eagle(TARGET, 1))
    (tmp_path / SAFETENSORS_FILE).unlink()
    index = {"weight_map": {"fc.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00001-of-00002.safetensors" in refusal()


def test_no_folder_and_no_configuration(tmp_path, refusal):
    assert "no such path" in refusal(tmp_path / "no")
    assert "config.json" in refusal()


def test_the_sharded_head_of_an_index_is_whole(tmp_path):
    """An extra file beside the index is no part of the head."""
    head = tiny_eagle(TARGET, 3)
    write_authors(tmp_path, head)
    tensors = load_file(tmp_path / SAFETENSORS_FILE)
    first = dict(list(tensors.items())[:4])
    config = json.loads((tmp_path / "config.json").read_text())
    write_folder(
        tmp_path / "b",
        config,
        {name: tensors[name] for name in tensors if name not in first},
        "b.safetensors",
    )
    write_folder(tmp_path, config, first, "a.safetensors")
    (tmp_path / "b" / "b.safetensors").rename(tmp_path / "b.safetensors")
    (tmp_path / "other.safetensors").write_bytes(b"none of the head's")
    index = {"weight_map": {name: "a.safetensors" if name in first else "b.safetensors" for name in tensors}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    opened = open_head(tmp_path, TARGET)
    assert all(torch.equal(opened.load(name), head.tensors[name]) for name in opened.shapes)


# Medusa.


@pytest.mark.parametrize("write", [write_medusa, write_vllm_medusa])
def test_medusa_heads_of_another_target(tmp_path, refusal, write):
    write(tmp_path, tiny_medusa(TARGET))
    assert "hidden size of the heads: got 32, need 48" in refusal(target=replace(TARGET, hidden_size=48))
    assert "vocabulary of the heads: got 60, need 64" in refusal(target=replace(TARGET, vocab_size=64))


def test_more_medusa_heads_than_the_file_has(tmp_path, refusal):
    write_medusa(tmp_path, tiny_medusa(TARGET), medusa_num_heads=4)
    assert "number of heads: got 4 in config.json, 3 in the weights" in refusal()


def test_another_number_of_medusa_blocks(tmp_path, refusal):
    write_vllm_medusa(tmp_path, tiny_medusa(TARGET), num_hidden_layers=2)
    assert "missing ('blocks.0.1.weight'" in refusal()


def test_a_medusa_head_with_a_gap(tmp_path, refusal):
    heads = tiny_medusa(TARGET)
    del heads.tensors["lm_heads.1.weight"]
    write_medusa(tmp_path, heads)
    assert "1 missing ('lm_heads.1.weight')" in refusal()


def test_medusa_biases_that_config_json_denies(tmp_path, refusal):
    write_vllm_medusa(tmp_path, tiny_medusa(TARGET), medusa_fc_bias=False)
    assert "3 unexpected" in refusal()


@pytest.mark.parametrize("size", [4, 60])
def test_a_medusa_vocabulary_of_another_length_than_its_map(tmp_path, refusal, size):
    write_vllm_medusa(tmp_path, tiny_medusa(TARGET, draft_ids=(1, 2, 3)), truncated_vocab_size=size)
    assert "truncated_vocab_size" in refusal()


def test_a_reduced_medusa_vocabulary_without_a_map(tmp_path, refusal):
    write_medusa(tmp_path, tiny_medusa(TARGET, draft_ids=(1, 2, 3)))
    assert "vocabulary of the heads: got 3, need 60" in refusal()


@pytest.mark.parametrize(
    "name", ["lm_heads.99999999999.weight", f"lm_heads.{'9' * 5000}.weight", "blocks.0.777.weight"]
)
def test_absurd_numbers_in_names_are_refused_at_once(tmp_path, refusal, name):
    heads = tiny_medusa(TARGET)
    heads.tensors[name] = torch.ones(60, 32)
    config = json.loads((write_vllm_medusa(tmp_path, tiny_medusa(TARGET)) / "config.json").read_text())
    write_folder(tmp_path, config, heads.tensors, SAFETENSORS_FILE)
    assert "unexpected" in refusal() or "missing" in refusal()


def test_medusa_without_its_first_output_layer(tmp_path, refusal):
    write_medusa(tmp_path, tiny_medusa(TARGET), file=SAFETENSORS_FILE)
    change_tensors(tmp_path, "0.1.weight", "1.1.weight", "2.1.weight")
    assert "number of heads" in refusal()


# Which folders hold heads.


@pytest.mark.parametrize("file", [SAFETENSORS_FILE, TORCH_FILE])
@pytest.mark.parametrize("write", [write_authors, write_speculators])
@pytest.mark.parametrize("version", [1, 3])
def test_a_folder_of_a_head_is_known(tmp_path, version, write, file):
    assert is_head(write(tmp_path, tiny_eagle(TARGET, version), file=file))


def test_folders_of_medusa_are_known(tmp_path):
    assert is_head(write_medusa(tmp_path / "a", tiny_medusa(TARGET)))
    assert is_head(write_vllm_medusa(tmp_path / "b", tiny_medusa(TARGET)))


def test_other_folders_are_none(tmp_path):
    assert not is_head(tmp_path) and not is_head(tmp_path / "no")
    tiny_checkpoint(tmp_path, "llama", hidden=32, vocab=60)
    assert not is_head(tmp_path)
    (tmp_path / SAFETENSORS_FILE).write_bytes(b"damaged")
    assert not is_head(tmp_path)
    (tmp_path / SAFETENSORS_FILE).unlink()
    assert not is_head(tmp_path)


# Whatever config.json says, a head is read or refused.

_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 70), st.sampled_from([2**31, 2**63, 1e400, 0.5, "", "eagle3", "llama"]),
    st.lists(st.integers(-1, 13), max_size=3), st.dictionaries(st.sampled_from(["verifier", "type"]), st.integers()),
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_configuration_is_read_or_refused(tmp_path, data):
    write = data.draw(st.sampled_from([write_authors, write_speculators, write_medusa, write_vllm_medusa]))
    is_eagle = write in (write_authors, write_speculators)
    write(
        tmp_path, tiny_eagle(TARGET, data.draw(st.sampled_from([1, 3]))) if is_eagle else tiny_medusa(TARGET)
    )
    config = json.loads((tmp_path / "config.json").read_text())
    inner = config.get("transformer_layer_config", config)
    known = [
        *RawHead.model_fields,
        *RawMedusa.model_fields,
        "dflash_config",
        "parallel_drafting",
        "medusa_num_heads",
    ]
    for keys, names in ((config, known), (inner, list(RawLayer.model_fields))):
        for name in data.draw(st.lists(st.sampled_from(names), max_size=2, unique=True)):
            keys[name] = data.draw(_VALUES, label=name)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert isinstance(is_head(tmp_path), bool)
    try:
        opened = open_head(tmp_path, data.draw(st.sampled_from([None, TARGET])))
    except CheckpointError as error:
        assert "\n" not in str(error) and len(str(error)) < 1200
    else:
        assert all(opened.load(name).shape == shape for name, shape in opened.shapes.items())
