"""A head that is not this target's, or not whole, is refused by name, and no weight is read for it.

Case S4.  Run: pytest tests/checkpoint/test_head_refusals.py
"""

import logging
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support.head_cases import TARGET, change_tensors
from support.head_checkpoints import (
    SAFETENSORS_FILE,
    TORCH_FILE,
    write_authors,
    write_sglang,
    write_speculators,
    write_vllm_medusa,
)
from support.tiny_heads import frequent_ids, tiny_eagle, tiny_medusa

from tspec.checkpoint.heads import open_head, read_head, target_ids
from tspec.core.errors import CheckpointError

WRITERS = [write_authors, write_sglang, write_speculators]


# Another target.


@pytest.mark.parametrize("version", [1, 3])
def test_another_hidden_size(tmp_path, refusal, version):
    write_authors(tmp_path, tiny_eagle(TARGET, version))
    message = refusal(target=replace(TARGET, hidden_size=48))
    assert "hidden size of the head's target: got 32, need 48, the target's" in message


@pytest.mark.parametrize("write", WRITERS)
def test_a_smaller_head_names_the_hidden_size_that_it_reads(tmp_path, refusal, write):
    write(tmp_path, tiny_eagle(TARGET, 3, hidden=16))
    assert "got 32, need 64, the target's" in refusal(target=replace(TARGET, hidden_size=64))


@pytest.mark.parametrize("version", [1, 3])
def test_another_vocabulary(tmp_path, refusal, version):
    write_authors(tmp_path, tiny_eagle(TARGET, version))
    message = refusal(target=replace(TARGET, vocab_size=64))
    assert "vocabulary of the head's target: got 60, need 64, the target's" in message


@pytest.mark.parametrize("write", WRITERS)
def test_layers_that_the_target_has_not(tmp_path, refusal, write):
    keys = {} if write is write_authors else {"eagle_aux_hidden_state_layer_ids": [2, 6, 13]}
    write(tmp_path, tiny_eagle(TARGET, 3), **keys)
    shallow = replace(TARGET, num_layers=2 if write is write_authors else 12)
    message = refusal(target=shallow)
    assert ("layer -1" if write is write_authors else "layer 13") in message
    assert f"the target, which has {shallow.num_layers}" in message


def test_an_output_of_a_layer_that_the_target_has_not(tmp_path, refusal):
    write_sglang(tmp_path, tiny_eagle(TARGET, 3, aux=(2, 6, 13)))
    assert "eagle_config" in refusal()


def test_an_offset_past_the_last_layer(tmp_path, refusal):
    write_speculators(tmp_path, tiny_eagle(TARGET, 3, aux=(2, 6, 12)))
    assert "layer_offset 1" in refusal(layer_offset=1)
    assert read_head(tmp_path, TARGET).aux_layers == (2, 6, 12)


def test_fc_of_another_number_of_hidden_states(tmp_path, refusal):
    write_speculators(tmp_path, tiny_eagle(TARGET, 3), eagle_aux_hidden_state_layer_ids=[2, 6])
    assert "'fc.weight': got [32, 96], need [32, 64], for 2 hidden states of 32" in refusal()


def test_fc_of_another_width(tmp_path, refusal):
    write_authors(tmp_path, tiny_eagle(TARGET, 3))
    change_tensors(tmp_path, fc__weight=torch.ones(32, 99))
    assert "got [32, 99], need [32, 96]" in refusal()


def test_another_family_is_only_reported(tmp_path, caplog):
    write_speculators(tmp_path, tiny_eagle(TARGET, 3))
    with caplog.at_level(logging.WARNING, logger="tspec"):
        read_head(tmp_path, TARGET)
        assert not caplog.records
        read_head(tmp_path, replace(TARGET, architecture="qwen3"))
    assert "trained for LlamaForCausalLM, not for qwen3" in caplog.text


# Not whole, or more than whole.


@pytest.mark.parametrize(
    "name",
    [
        "fc.weight",
        "midlayer.hidden_norm.weight",
        "midlayer.mlp.up_proj.weight",
        "norm.weight",
        "lm_head.weight",
        "d2t",
    ],
)
def test_a_missing_tensor(tmp_path, refusal, name):
    write_authors(tmp_path, tiny_eagle(TARGET, 3, draft_ids=frequent_ids(60, 25)))
    change_tensors(tmp_path, name)
    assert f"1 missing ('{name.replace('midlayer', 'layers.0')}')" in refusal()


@pytest.mark.parametrize(
    "flags", [{"fc_norm": True}, {"norm_before_fc": True}, {"qk_norm": True}, {"fc_bias": True}], ids=str
)
def test_what_config_json_promises_has_to_be_there(tmp_path, refusal, flags):
    version = 1 if "fc_bias" in flags else 3
    head = tiny_eagle(TARGET, version, **flags)
    plain = tiny_eagle(TARGET, version)
    write_speculators(tmp_path, replace(head, tensors=plain.tensors))
    assert "missing" in refusal()


@pytest.mark.parametrize(
    "name", ["fc_norm.0.weight", "input_norm.weight", "layers.1.mlp.up_proj.weight", "extra"]
)
def test_an_unexpected_tensor(tmp_path, refusal, name):
    head = tiny_eagle(TARGET, 3)
    head.tensors[name] = torch.ones(3)
    write_speculators(tmp_path, head)
    assert f"1 unexpected ('{name}' F32)" in refusal()


def test_a_bias_that_config_json_denies(tmp_path, refusal):
    write_authors(tmp_path, tiny_eagle(TARGET, 1, fc_bias=True), bias=False)
    assert "1 unexpected ('fc.bias' F32)" in refusal()


def test_what_training_leaves_behind_is_harmless(tmp_path):
    head = tiny_eagle(TARGET, 3, draft_ids=frequent_ids(60, 25))
    head.tensors["verifier_norm.weight"] = torch.ones(32)
    head.tensors["verifier_lm_head.weight"] = torch.ones(60, 32)
    head.tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    opened = open_head(write_speculators(tmp_path, head), TARGET)
    assert "t2d" in load_file(tmp_path / SAFETENSORS_FILE)
    assert not {"t2d", "verifier_norm.weight", "verifier_lm_head.weight"} & set(opened.tensors)
    with pytest.raises(CheckpointError, match="'t2d'"):
        opened.load("t2d")


@pytest.mark.parametrize("file", [SAFETENSORS_FILE, TORCH_FILE])
def test_shapes_and_types_are_accounted_for_in_every_file(tmp_path, refusal, file):
    head = tiny_eagle(TARGET, 1)
    head.tensors["layers.0.mlp.up_proj.weight"] = torch.ones(48, 31)
    head.tensors["layers.0.mlp.down_proj.weight"] = torch.ones(32, 48, dtype=torch.float64)
    write_authors(tmp_path, head, file=file)
    message = refusal()
    assert "'layers.0.mlp.up_proj.weight' [48, 31], not [48, 32]" in message
    assert "'layers.0.mlp.down_proj.weight' F64" in message


def test_a_map_of_tokens_has_to_be_of_integers(tmp_path, refusal):
    write_authors(tmp_path, tiny_eagle(TARGET, 3, draft_ids=frequent_ids(60, 25)))
    change_tensors(tmp_path, d2t=torch.ones(25))
    assert "1 of unsupported dtype ('d2t' F32)" in refusal()


def test_two_names_of_one_tensor(tmp_path, refusal):
    write_authors(tmp_path, tiny_eagle(TARGET, 3))
    change_tensors(tmp_path, layers__0__hidden_norm__weight=torch.ones(32))
    assert "both 'layers.0.hidden_norm.weight'" in refusal()


def test_a_draft_vocabulary_larger_than_the_targets(tmp_path, refusal):
    write_authors(tmp_path, tiny_eagle(TARGET, 3), draft_vocab_size=61)
    assert "draft vocabulary: got 61, need at most 60" in refusal()


def test_a_smaller_head_needs_an_embedding_of_its_own(tmp_path, refusal):
    head = tiny_eagle(TARGET, 3, hidden=16)
    del head.tensors["embed_tokens.weight"]
    write_speculators(tmp_path, head)
    assert "1 missing ('embed_tokens.weight')" in refusal()


@pytest.mark.parametrize("entry", [-4, 57, 2**62, -(2**63)])
def test_a_map_out_of_range_names_its_first_bad_entry(tmp_path, entry):
    write_authors(tmp_path, tiny_eagle(TARGET, 3, draft_ids=(1, 2, 7, 9)))
    change_tensors(tmp_path, d2t=torch.tensor([1, 1, 5, entry]))
    opened = open_head(tmp_path, TARGET)
    with pytest.raises(CheckpointError, match=rf"d2t\[3\]: got target id {entry + 3}, need ids from 0 to 59"):
        target_ids(opened)


def test_a_map_that_names_an_id_twice_is_refused(tmp_path):
    write_authors(tmp_path, tiny_eagle(TARGET, 3, draft_ids=(1, 2, 7, 9)))
    change_tensors(tmp_path, d2t=torch.tensor([1, 1, 0, -1]))
    with pytest.raises(CheckpointError, match=r"d2t\[2\]: got target id 2, which an entry before it has"):
        target_ids(open_head(tmp_path, TARGET))


def test_a_token_map_is_checked_as_well(tmp_path):
    write_vllm_medusa(tmp_path, tiny_medusa(TARGET, draft_ids=(5, 0, 5, 60)))
    with pytest.raises(CheckpointError, match=r"token_map\[2\]: got target id 5"):
        target_ids(open_head(tmp_path, TARGET))
