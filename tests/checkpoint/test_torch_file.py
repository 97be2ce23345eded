"""Files of torch.save are data: hostile, cut and foreign ones are one-line errors, and nothing in them runs.

Run: pytest tests/checkpoint/test_torch_file.py
"""

import os
import random
import zipfile
from pathlib import Path

import pytest
import torch

from tspec.checkpoint.torch_file import TorchEntry, open_torch_file
from tspec.core.errors import CheckpointError


def refusal(file: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_torch_file(file)
    message = str(caught.value)
    assert str(file) in message and "\n" not in message and len(message) < 800
    assert "weights_only" not in message  # torch's own message tells people to load the file as code
    return message


@pytest.fixture
def file(tmp_path):
    return tmp_path / "pytorch_model.bin"


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_tensors_read_back(file):
    values = {
        "f32": torch.randn(3, 4),
        "bf16": torch.randn(5).bfloat16(),
        "f16": torch.randn(2, 2).half(),
        "map": torch.arange(7),
        "mask": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
        "one": torch.tensor(3.0),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    torch.save(values, file)
    opened = open_torch_file(file)
    assert opened.tensors["f32"] == TorchEntry("f32", "F32", (3, 4), 48)
    assert opened.tensors["map"] == TorchEntry("map", "I64", (7,), 56)
    assert set(opened.tensors) == set(values)
    for name, value in values.items():
        loaded = opened.load(name)
        assert torch.equal(loaded, value) and loaded.dtype == value.dtype and not loaded.requires_grad


def test_views_and_shared_storages_read_back_as_what_they_show(file):
    whole = torch.randn(6, 4)
    torch.save({"turned": whole.T, "part": whole[2:4, 1:3], "again": whole}, file)
    opened = open_torch_file(file)
    assert torch.equal(opened.load("turned"), whole.T) and opened.load("turned").is_contiguous()
    assert torch.equal(opened.load("part"), whole[2:4, 1:3]) and torch.equal(opened.load("again"), whole)


def test_a_state_dict_is_a_dictionary(file):
    torch.save(torch.nn.Linear(2, 3).state_dict(), file)
    assert {name: entry.shape for name, entry in open_torch_file(file).tensors.items()} == {
        "weight": (3, 2),
        "bias": (3,),
    }


@pytest.mark.parametrize(
    "wrap", [lambda it: it, lambda it: {"w": it}, lambda it: {"w": torch.ones(2), "x": [it]}]
)
def test_nothing_of_a_hostile_pickle_runs(file, tmp_path, wrap):
    torch.save(wrap(Hostile(tmp_path / "pwned")), file)
    assert "a pickle that asks for posix.mkdir" in refusal(file)
    assert not (tmp_path / "pwned").exists()


def test_a_module_is_not_run_either(file):
    torch.save(torch.nn.Linear(2, 2), file)
    assert "torch.nn.modules.linear.Linear" in refusal(file)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ([torch.ones(2)], "got list"),
        (torch.ones(2), "got Tensor"),
        ({"w": {"x": torch.ones(2)}}, "tensor 'w': got dict"),
        ({"w": 3}, "tensor 'w': got int"),
        ({3: torch.ones(2)}, "key 3"),
        ({"w": torch.eye(3).to_sparse()}, "sparse"),
        ({"w": torch.ones(3, device="meta")}, "meta"),
        ({"w": torch.ones(3, dtype=torch.complex64)}, "complex64"),
    ],
    ids=str,
)
def test_whatever_is_no_dictionary_of_plain_tensors_is_named(file, value, word):
    torch.save(value, file)
    assert word in refusal(file)


@pytest.mark.parametrize("shape", [(10**6, 10**6), (2**40,)], ids=str)
def test_a_tensor_of_one_byte_that_claims_to_be_huge(file, shape):
    torch.save({"w": torch.ones(1).expand(shape)}, file)
    assert "stored" in refusal(file)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_cut_file_is_none(file, share):
    torch.save({"w": torch.randn(300)}, file)
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    assert "no zip archive" in refusal(file)


def rewrite(file: Path, pickle=lambda data: data, compression=zipfile.ZIP_STORED) -> None:
    """Write the archive's members anew, the pickle changed."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, pickle(data) if name.endswith("data.pkl") else data)


@pytest.mark.parametrize("count", [b"M\x40\x00", b"M\xff\x7f"], ids=["within the file", "past its end"])
def test_an_array_that_claims_more_than_its_member_has(file, count):
    torch.save({"w": torch.randn(3, 4), "x": torch.randn(500)}, file)
    shapes = {b"M\x40\x00": b"K\x04K\x10", b"M\xff\x7f": b"M\xff\x0fK\x04"}
    rewrite(file)
    assert open_torch_file(file).tensors["w"].shape == (3, 4)  # the rewriting itself does no harm
    rewrite(file, lambda data: data.replace(b"K\x0ctq", count + b"tq").replace(b"K\x03K\x04", shapes[count]))
    refusal(file)


def test_compressed_members_are_not_mapped(file):
    torch.save({"w": torch.randn(3, 4)}, file)
    rewrite(file, compression=zipfile.ZIP_DEFLATED)
    assert "compressed" in refusal(file)


def test_the_format_before_torch_1_6_says_what_to_do(file):
    torch.save({"w": torch.ones(2)}, file, _use_new_zipfile_serialization=False)
    assert "before 1.6" in refusal(file) and "safetensors" in refusal(file)


def test_a_git_lfs_pointer_is_named(file):
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n")
    assert "Git LFS" in refusal(file)


def test_an_absent_file_and_a_folder_are_named(file):
    assert "no such file" in refusal(file)
    file.mkdir()
    assert "no such file" in refusal(file)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_opens_or_is_refused_and_never_crashes(file, seed):
    torch.save({"w": torch.randn(3, 4), "map": torch.arange(5)}, file)
    generator, data = random.Random(seed), bytearray(file.read_bytes())
    for _ in range(3):
        data[generator.randrange(500)] = generator.randrange(256)  # the pickle and the members around it
    file.write_bytes(data)
    try:
        opened = open_torch_file(file)
    except CheckpointError as error:
        assert "\n" not in str(error)
    else:
        for name, entry in opened.tensors.items():
            assert opened.load(name).shape == entry.shape
