"""Weights are zero-copy views of the file, and a checkpoint that is not the model's is refused as a whole.

Case D18.  Run: pytest tests/checkpoint/test_weights.py
"""

import json
import logging

import pytest
import torch
from safetensors.torch import save_file
from support.tiny_models import ARCHITECTURES, tiny_checkpoint

from tspec.checkpoint.hf_config import read_config
from tspec.checkpoint.weights import (
    EMBEDDING,
    HEAD,
    account,
    checkpoint_dtype,
    open_checkpoint,
    resolve_tying,
)
from tspec.core.dtypes import DType
from tspec.core.errors import CheckpointError


def checkpoint_of(folder, **tensors):
    folder.mkdir(exist_ok=True)
    save_file(
        {name.replace("__", "."): value.clone() for name, value in tensors.items()},
        folder / "model.safetensors",
    )
    return open_checkpoint(folder)


def refusal(call, *arguments) -> str:
    with pytest.raises(CheckpointError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("max_shard_bytes", [None, 40_000], ids=["single file", "sharded"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_loads_bit_for_bit(tmp_path, architecture, max_shard_bytes):
    model = tiny_checkpoint(tmp_path, architecture, dtype=torch.bfloat16, max_shard_bytes=max_shard_bytes)
    checkpoint = open_checkpoint(tmp_path)
    expected = model.state_dict()
    assert len({entry.file for entry in checkpoint.tensors.values()}) > (1 if max_shard_bytes else 0)
    assert set(checkpoint.tensors) == set(expected)
    for name, value in expected.items():
        assert torch.equal(checkpoint.load(name), value) and checkpoint.load(name).dtype == value.dtype
    account(checkpoint, {name: tuple(value.shape) for name, value in expected.items()})
    assert checkpoint_dtype(checkpoint) is DType.BFLOAT16


def test_a_loaded_tensor_is_a_view_of_one_mapping_of_its_file(tmp_path):
    checkpoint = checkpoint_of(tmp_path, a=torch.ones(4), b=torch.zeros(4))
    assert checkpoint.load("a").data_ptr() == checkpoint.load("a").data_ptr()
    distance = abs(checkpoint.load("a").data_ptr() - checkpoint.load("b").data_ptr())
    assert distance == abs(checkpoint.tensors["a"].start - checkpoint.tensors["b"].start)


def test_a_tensor_at_an_odd_offset_is_copied_to_an_aligned_place(tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header = header.ljust(len(header) // 4 * 4 + 5)
    data = torch.tensor([1.5, -2.0]).numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    loaded = open_checkpoint(tmp_path).load("w")
    assert loaded.tolist() == [1.5, -2.0] and loaded.data_ptr() % 4 == 0


def test_nan_scalars_and_empty_tensors_load_as_they_are(tmp_path):
    checkpoint = checkpoint_of(
        tmp_path, nan=torch.full((2, 2), torch.nan), one=torch.tensor(3.0), none=torch.empty(0, 3)
    )
    assert checkpoint.load("nan").isnan().all()
    assert checkpoint.load("one").shape == () and checkpoint.load("one").item() == 3.0
    assert checkpoint.load("none").shape == (0, 3)


def test_loading_what_is_not_there_or_not_a_weight_is_refused(tmp_path):
    checkpoint = checkpoint_of(tmp_path, q=torch.ones(2, dtype=torch.int8))
    assert "'absent'" in refusal(checkpoint.load, "absent")
    assert "got I8" in refusal(checkpoint.load, "q")


@pytest.mark.parametrize("size_bytes", [0, 90])
def test_a_file_that_shrank_since_its_header_was_read_is_refused(tmp_path, size_bytes):
    checkpoint = checkpoint_of(tmp_path, w=torch.ones(64))
    with (tmp_path / "model.safetensors").open("r+b") as stream:
        stream.truncate(size_bytes)
    assert f"got {size_bytes} bytes" in refusal(checkpoint.load, "w")


def test_accounting_lists_every_fault_in_one_error(tmp_path):
    checkpoint = checkpoint_of(
        tmp_path,
        good=torch.ones(2, 3),
        turned=torch.ones(3, 2),
        extra=torch.ones(1),
        half=torch.ones(2).half(),
    )
    expected = {"good": (2, 3), "turned": (2, 3), "absent": (5,), "half": (2,)}
    message = refusal(account, checkpoint, expected)
    assert "1 missing ('absent')" in message
    assert "1 unexpected ('extra' F32)" in message
    assert "1 of wrong shape ('turned' [3, 2], not [2, 3])" in message
    assert "good" not in message and "half" not in message


def test_accounting_cuts_a_long_list_and_says_so(tmp_path):
    checkpoint = checkpoint_of(tmp_path, w=torch.ones(1))
    message = refusal(account, checkpoint, {"w": (1,)} | {f"layer{number}": (1,) for number in range(300)})
    assert "300 missing" in message and "and 292 more" in message and len(message) < 1000


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float8_e4m3fn, "F8_E4M3"),
        (torch.int8, "I8"),
        (torch.float64, "F64"),
        (torch.int32, "I32"),
        (torch.bool, "BOOL"),
    ],
    ids=str,
)
def test_other_dtypes_are_refused_by_name(tmp_path, dtype, name):
    checkpoint = checkpoint_of(tmp_path, w=torch.ones(2, 2).to(dtype))
    message = refusal(account, checkpoint, {"w": (2, 2)})
    assert f"1 of unsupported dtype ('w' {name})" in message and "quantised" in message


def test_gptq_weights_are_recognised(tmp_path):
    checkpoint = checkpoint_of(
        tmp_path,
        q_proj__qweight=torch.ones(2, 2, dtype=torch.int32),
        q_proj__scales=torch.ones(2, 2).half(),
    )
    message = refusal(account, checkpoint, {"q_proj.weight": (2, 2)})
    assert "look quantised (GPTQ" in message and "'q_proj.qweight' I32" in message


def test_stored_rotary_tables_and_named_extras_are_ignored(tmp_path):
    checkpoint = checkpoint_of(
        tmp_path,
        w=torch.ones(1),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4),
        vision=torch.ones(1),
    )
    account(checkpoint, {"w": (1,)}, ignored={"vision"})
    assert "vision" in refusal(account, checkpoint, {"w": (1,)})


def test_a_head_beside_a_tied_embedding_is_ignored_only_in_its_shape(tmp_path):
    tensors = {EMBEDDING: torch.ones(4, 2), HEAD: torch.ones(4, 2)}
    account(checkpoint_of(tmp_path / "a", **tensors), {EMBEDDING: (4, 2)})
    tensors[HEAD] = torch.ones(5, 2)
    assert HEAD in refusal(account, checkpoint_of(tmp_path / "b", **tensors), {EMBEDDING: (4, 2)})


def test_the_dtype_is_that_of_most_matrix_bytes(tmp_path):
    checkpoint = checkpoint_of(
        tmp_path,
        norm=torch.ones(1000),
        large=torch.ones(9, 9).bfloat16(),
        small=torch.ones(3, 3),
        quantised=torch.ones(99, 99, dtype=torch.int8),
    )
    assert checkpoint_dtype(checkpoint) is DType.BFLOAT16


def test_a_checkpoint_without_matrices_has_no_dtype(tmp_path):
    assert "no matrix" in refusal(checkpoint_dtype, checkpoint_of(tmp_path, norm=torch.ones(8)))


# Head tying, case D18: the flag in config.json against the head in the file.


def tied(folder, *, flag: bool, head: str):
    """A tiny llama whose file has no head, the embedding as its head, or another head."""
    tiny_checkpoint(folder, "llama", tie=flag)
    file = folder / "model.safetensors"
    checkpoint = open_checkpoint(folder)
    tensors = {name: checkpoint.load(name).clone() for name in checkpoint.tensors if name != HEAD}
    tensors[EMBEDDING][0, 0] = torch.nan  # which differs from itself: comparing values would not do
    if head != "none":
        tensors[HEAD] = tensors[EMBEDDING].clone()
    if head == "other":
        tensors[HEAD][3, 5] += 1
    file.unlink()
    save_file(tensors, file)
    return read_config(folder), open_checkpoint(folder)


@pytest.mark.parametrize(
    ("flag", "head", "is_tied"),
    [
        (True, "none", True),
        (True, "same", True),
        (True, "other", False),
        (False, "same", False),
        (False, "other", False),
    ],
)
def test_the_head_of_the_file_is_never_dropped(tmp_path, caplog, flag, head, is_tied):
    config, checkpoint = tied(tmp_path, flag=flag, head=head)
    with caplog.at_level(logging.WARNING, logger="tspec"):
        resolved = resolve_tying(config, checkpoint)
    assert resolved.tie_word_embeddings is is_tied
    assert [HEAD in record.getMessage() for record in caplog.records] == (
        [True] if flag and head == "other" else []
    )


def test_no_head_and_no_tying_is_refused(tmp_path):
    config, checkpoint = tied(tmp_path, flag=False, head="none")
    message = refusal(resolve_tying, config, checkpoint)
    assert HEAD in message and "tie_word_embeddings" in message


def test_a_head_of_another_shape_is_used_although_tied(tmp_path):
    config, _ = tied(tmp_path / "model", flag=True, head="none")
    tensors = {EMBEDDING: torch.ones(4, 2), HEAD: torch.ones(8, 2)}
    assert not resolve_tying(config, checkpoint_of(tmp_path / "file", **tensors)).tie_word_embeddings
