"""`tspec inspect HEAD` says which format and conventions it found, and whether the head fits a target.

Run: pytest tests/cli/test_inspect_head.py
"""

import pytest
import torch
from support.head_checkpoints import TORCH_FILE, write_authors, write_medusa, write_sglang, write_speculators
from support.tiny_heads import frequent_ids, tiny_eagle, tiny_medusa

from tspec.checkpoint.hf_config import read_config


@pytest.fixture
def target(tiny_folder):
    return read_config(tiny_folder)


def printed(outcome) -> dict[str, str]:
    """The lines by their first column."""
    assert (outcome.status, outcome.err) == (0, "")
    return {name.strip(): text for name, text in (line.split("  ", 1) for line in outcome.out.splitlines())}


def lines(run, *arguments) -> dict[str, str]:
    return {name: text.strip() for name, text in printed(run("inspect", *arguments)).items()}


def test_eagle3_of_the_library(run, tmp_path, tiny_folder, target):
    head = tiny_eagle(
        target, 3, draft_ids=frequent_ids(target.vocab_size, 40), norm_output=True, fc_norm=True
    )
    shown = lines(run, write_speculators(tmp_path, head), "--target", tiny_folder)
    assert shown["format"] == "EAGLE-3, layout of the speculators library (model.safetensors)"
    assert shown["target"] == f"hidden size 64, vocabulary 259; fits {tiny_folder}"
    assert shown["hidden states"] == "inputs of the target's layers 0, 1, 2"
    assert shown["layer ids"].startswith("input-of-layer: eagle_aux_hidden_state_layer_ids stands at the top")
    assert shown["layers"] == "1 of hidden size 64, float32"
    assert shown["attention"] == "4 heads of 16, 2 KV heads" and shown["MLP"] == "48"
    assert shown["rotation"] == "default, base 10000, the head's own"
    assert shown["vocabulary"] == "40 of the target's 259, by d2t"
    assert (shown["embedding"], shown["output layer"]) == ("the target's", "its own")
    assert shown["fed back"] == "what the layers put out, after the final norm"
    assert shown["switches"] == "fc_norm, norm_output"
    size_bytes = sum(value.nbytes for value in head.tensors.values()) + 40 * 8
    assert shown["weights"] == f"{len(head.tensors) + 1} tensors, {size_bytes / 2**20:.1f} MiB"


def test_eagle1_of_its_authors(run, tmp_path, target):
    shown = lines(run, write_authors(tmp_path, tiny_eagle(target, 1, fc_bias=True), file=TORCH_FILE))
    assert shown["format"] == "EAGLE-1 or 2, its authors' layout (pytorch_model.bin)"
    assert shown["target"] == "hidden size 64, vocabulary 259; not compared with one (--target)"
    assert (
        shown["hidden states"] == "the target's last one, after its final norm" and "layer ids" not in shown
    )
    assert shown["vocabulary"] == "the target's 259" and shown["output layer"] == "the target's"
    assert shown["switches"] == "fc bias"


def test_ids_that_count_outputs_are_shown_as_inputs(run, tmp_path, tiny_folder, target):
    write_sglang(
        tmp_path, tiny_eagle(target, 3, aux=(1, 1, 2)), rope_scaling={"type": "linear", "factor": 2.5}
    )
    shown = lines(run, tmp_path, "--target", tiny_folder)
    assert shown["hidden states"].endswith("layers 1, 1, 2") and "SGLang" in shown["format"]
    assert shown["layer ids"] == "output-of-layer: eagle_aux_hidden_state_layer_ids stands in eagle_config"
    assert shown["rotation"].startswith("linear, base 10000, factor 2.5") and shown["switches"] == "none"


def test_without_a_target_the_default_layers_are_open(run, tmp_path, target):
    shown = lines(run, write_authors(tmp_path, tiny_eagle(target, 3, window=9)))
    assert shown["hidden states"] == "open without a target" and "L / 2" in shown["layer ids"]
    assert shown["window"] == "9"


def test_an_offset_moves_the_layers(run, tmp_path, tiny_folder, target):
    write_speculators(tmp_path, tiny_eagle(target, 3, aux=(0, 1, 1)))
    shown = lines(run, tmp_path, "--target", tiny_folder, "--layer-offset", 1)
    assert shown["hidden states"].endswith("1, 2, 2") and "layer_offset 1" in shown["layer ids"]
    run("inspect", tmp_path, "--target", tiny_folder, "--layer-offset", 2).assert_fails(
        1, "layer 3", "which has 2"
    )


def test_medusa(run, tmp_path, tiny_folder, target):
    shown = lines(run, write_medusa(tmp_path, tiny_medusa(target, num_heads=4)), "--target", tiny_folder)
    assert shown["format"] == "Medusa, its authors' layout (medusa_lm_head.safetensors)"
    assert shown["heads"] == "4 of 1 blocks, float32" and shown["output layers"] == "one for each head"
    assert shown["switches"] == "biases of blocks" and shown["vocabulary"] == "the target's 259"


def test_a_head_of_another_target_fails(run, tmp_path, tiny_folder, target):
    head = tiny_eagle(target, 3, hidden=32)
    write_speculators(tmp_path, head, target_hidden_size=32)
    run("inspect", tmp_path, "--target", tiny_folder).assert_fails(
        1, "hidden size of the head's target", "got 32"
    )


def test_a_damaged_map_of_tokens_fails(run, tmp_path, target):
    run("inspect", write_authors(tmp_path, tiny_eagle(target, 3, draft_ids=(1, 2, 1)))).assert_fails(
        1, "d2t[2]", "target id 1"
    )


def test_a_hostile_file_fails_in_one_sentence(run, tmp_path, target):
    write_authors(tmp_path, tiny_eagle(target, 3), file=TORCH_FILE)
    torch.save(torch.nn.Linear(2, 2), tmp_path / TORCH_FILE)
    run("inspect", tmp_path).assert_fails(1, "torch.nn.modules.linear.Linear", TORCH_FILE)


@pytest.mark.parametrize("option", [("--target", "."), ("--layer-offset", 1)], ids=str)
def test_options_of_heads_are_wrong_usage_for_a_whole_model(run, tiny_folder, option):
    run("inspect", tiny_folder, *option).assert_fails(2, option[0], "a whole model")


@pytest.mark.parametrize("write", [write_authors, write_medusa])
def test_an_offset_for_a_head_that_reads_no_layers_is_wrong_usage(run, tmp_path, target, write):
    write(tmp_path, tiny_eagle(target, 1) if write is write_authors else tiny_medusa(target))
    run("inspect", tmp_path, "--layer-offset", 1).assert_fails(2, "layer_offset", "EAGLE-3")


def test_a_target_that_is_none_fails(run, tmp_path, target):
    run("inspect", write_authors(tmp_path, tiny_eagle(target, 1)), "--target", tmp_path / "no").assert_fails(
        1, "no such path"
    )
