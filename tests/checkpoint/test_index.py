"""A folder's weights are found in one file or in the shards of its index; each fault names the file.

Case D22.  Run: pytest tests/checkpoint/test_index.py
"""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from tspec.checkpoint.index import INDEX_FILE, SINGLE_FILE, find_tensors
from tspec.core.errors import CheckpointError

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def shard(folder, name, *tensors):
    save_file({tensor: torch.ones(2) for tensor in tensors}, folder / name)


def index(folder, weight_map):
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


@pytest.fixture
def sharded(tmp_path):
    shard(tmp_path, ONE, "a", "b")
    shard(tmp_path, TWO, "c")
    index(tmp_path, {"a": ONE, "b": ONE, "c": TWO})
    return tmp_path


def refusal(folder) -> str:
    with pytest.raises(CheckpointError) as caught:
        find_tensors(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_single_file_needs_no_index(tmp_path):
    shard(tmp_path, SINGLE_FILE, "a", "b")
    assert {name: entry.file.name for name, entry in find_tensors(tmp_path).items()} == {
        "a": SINGLE_FILE,
        "b": SINGLE_FILE,
    }


def test_shards_are_found_through_the_index(sharded):
    files = {name: entry.file.name for name, entry in find_tensors(sharded).items()}
    assert files == {"a": ONE, "b": ONE, "c": TWO}


def test_extra_files_beside_the_index_are_ignored(sharded):
    (sharded / "consolidated.safetensors").write_bytes(b"garbage")
    shard(sharded, "other.safetensors", "a", "z")
    assert set(find_tensors(sharded)) == {"a", "b", "c"}


def test_a_tensor_that_the_index_does_not_name_is_not_part_of_the_checkpoint(sharded):
    index(sharded, {"a": ONE, "c": TWO})
    assert set(find_tensors(sharded)) == {"a", "c"}


def test_a_missing_shard_is_named(sharded):
    (sharded / TWO).unlink()
    message = refusal(sharded)
    assert TWO in message and "no such file" in message


def test_a_tensor_that_is_in_no_shard_is_named_with_its_shard(sharded):
    index(sharded, {"a": ONE, "b": ONE, "c": ONE})
    message = refusal(sharded)
    assert "'c'" in message and ONE in message


def test_a_damaged_shard_is_named(sharded):
    (sharded / TWO).write_bytes((sharded / TWO).read_bytes()[:-1])
    message = refusal(sharded)
    assert TWO in message and "cut short" in message


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors",
        "/etc/model.safetensors",
        "a/../../model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "C:model.safetensors",
        "model.safetensors\0",
        "..",
        "",
        "config.json",
        7,
        None,
        ["model.safetensors"],
    ],
    ids=repr,
)
def test_a_shard_outside_the_folder_is_refused(sharded, name):
    index(sharded, {"a": ONE, "c": name})
    message = refusal(sharded)
    assert INDEX_FILE in message and "'c'" in message


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"], ids=repr)
def test_an_index_without_a_weight_map_is_refused(sharded, weight_map):
    index(sharded, weight_map)
    assert "weight_map" in refusal(sharded)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": {"a": "x", "a": "y"}}'])
def test_a_broken_index_is_refused(sharded, text):
    (sharded / INDEX_FILE).write_text(text)
    assert INDEX_FILE in refusal(sharded)


def test_shards_may_be_links_out_of_the_folder(sharded, tmp_path_factory):
    blob = tmp_path_factory.mktemp("blobs") / "0123"
    os.replace(sharded / TWO, blob)
    (sharded / TWO).symlink_to(blob)
    assert set(find_tensors(sharded)) == {"a", "b", "c"}


def test_a_dangling_link_is_a_missing_shard(sharded):
    (sharded / TWO).unlink()
    (sharded / TWO).symlink_to("nowhere")
    assert TWO in refusal(sharded)


def test_an_empty_folder_says_what_it_should_hold(tmp_path):
    message = refusal(tmp_path)
    assert SINGLE_FILE in message and INDEX_FILE in message


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickled_weights_are_named_with_the_way_out(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    assert "Convert pytorch_model.bin" in refusal(tmp_path)


def test_shards_without_an_index_are_named(tmp_path):
    shard(tmp_path, ONE, "a")
    message = refusal(tmp_path)
    assert ONE in message and INDEX_FILE in message


def test_a_file_or_nothing_in_the_folders_place_is_refused(tmp_path):
    shard(tmp_path, SINGLE_FILE, "a")
    assert "got a file" in refusal(tmp_path / SINGLE_FILE)
    assert "no such path" in refusal(tmp_path / "absent")
