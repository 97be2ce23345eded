"""A safetensors header is believed only where it is possible: everything else is a CheckpointError.

Case D21.  Run: pytest tests/checkpoint/test_header.py
"""

import json
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tspec.checkpoint.header import TensorEntry, read_header
from tspec.core.errors import CheckpointError


def tensor(start, end, shape=(1, 2), dtype="F32", **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end], **more}


def write(folder: Path, header, data: bytes = b"", length: int | None = None) -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = folder / "model.safetensors"
    length = len(encoded) if length is None else length
    file.write_bytes(length.to_bytes(8, "little") + encoded + data)
    return file


def refusal(file: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_header(file)
    message = str(caught.value)
    assert str(file) in message and "\n" not in message and len(message) < 1200
    return message


def test_a_file_that_safetensors_wrote_reads_back_name_by_name(tmp_path):
    file = tmp_path / "model.safetensors"
    values = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(4, dtype=torch.bfloat16)}
    save_file(values, file, metadata={"format": "pt"})
    entries = read_header(file)
    assert set(entries) == {"a", "b"}
    assert (entries["b"].dtype, entries["b"].shape, entries["b"].size_bytes) == ("F32", (2, 3), 24)
    assert (entries["a"].dtype, entries["a"].shape, entries["a"].size_bytes) == ("BF16", (4,), 8)
    data = file.read_bytes()
    assert data[entries["b"].start :][:24] == values["b"].numpy().tobytes()


def test_entries_say_where_in_the_file_the_tensor_lies(tmp_path):
    file = write(tmp_path, {"w": tensor(0, 8)}, bytes(8))
    start = 8 + len(json.dumps({"w": tensor(0, 8)}))
    assert read_header(file) == {"w": TensorEntry("w", "F32", (1, 2), file, start, 8)}


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2**40)])
def test_a_tensor_without_elements_is_fine(tmp_path, shape):
    file = write(tmp_path, {"none": tensor(0, 0, shape), "w": tensor(0, 8)}, bytes(8))
    assert read_header(file)["none"].size_bytes == 0


def test_a_scalar_and_an_empty_file_of_tensors_are_fine(tmp_path):
    assert read_header(write(tmp_path, {"s": tensor(0, 4, ())}, bytes(4)))["s"].shape == ()
    assert read_header(write(tmp_path, {})) == {}


def test_a_header_of_exactly_100000_bytes_is_fine(tmp_path):
    encoded = json.dumps({"w": tensor(0, 8)}).encode().ljust(100_000)
    assert set(read_header(write(tmp_path, encoded, bytes(8)))) == {"w"}


def test_metadata_is_ignored_whatever_it_is(tmp_path):
    file = write(tmp_path, {"__metadata__": {"format": "pt", "n": "1"}, "w": tensor(0, 8)}, bytes(8))
    assert set(read_header(file)) == {"w"}


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 200_000_000, 100_000_001, 1_000, 1, 0])
def test_an_impossible_header_length_allocates_nothing(tmp_path, length):
    file = write(tmp_path, b"{}".ljust(900), length=length)
    tracemalloc.start()
    message = refusal(file)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"header length: got {length} bytes" in message
    assert peak_bytes < 1_000_000


def test_a_huge_sparse_file_does_not_raise_the_limit_of_100_mb(tmp_path):
    file = write(tmp_path, b"{}", length=200_000_000)
    with file.open("r+b") as stream:
        stream.truncate(300_000_000)
    assert "got 200000000 bytes" in refusal(file)


@pytest.mark.parametrize("kept", [0, 3, 7])
def test_a_file_cut_in_its_length_is_refused(tmp_path, kept):
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(kept))
    assert f"got {kept} bytes" in refusal(file)


def test_a_file_cut_in_its_header_is_refused(tmp_path):
    file = write(tmp_path, {"w": tensor(0, 8)}, bytes(8))
    file.write_bytes(file.read_bytes()[:30])
    assert "header length" in refusal(file)


def test_a_file_cut_in_its_data_names_the_tensor(tmp_path):
    file = write(tmp_path, {"w": tensor(0, 8), "last": tensor(8, 16)}, bytes(13))
    message = refusal(file)
    assert "'last'" in message and "cut short" in message


def test_trailing_bytes_are_counted(tmp_path):
    assert "got 5 bytes after tensor 'w'" in refusal(write(tmp_path, {"w": tensor(0, 8)}, bytes(13)))


def test_a_git_lfs_pointer_is_called_by_its_name(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 269060552\n")
    assert "Git LFS pointer" in refusal(file)


@pytest.mark.parametrize(
    "fields",
    [
        tensor(8, 0),
        tensor(-8, 0),
        tensor(0, 8.0),
        tensor(0, True),
        {**tensor(0, 8), "data_offsets": [0]},
        {**tensor(0, 8), "data_offsets": [0, 4, 8]},
        {**tensor(0, 8), "data_offsets": "0,8"},
        tensor(0, 2**70),
        tensor(0, 4),
        tensor(0, 8, (2, 2)),
        tensor(0, 8, (-1, -2)),
        tensor(0, 8, (2**62, 2**62)),
        tensor(0, 0, (0, 2**62, 2**62)),
        tensor(0, 8, (10**300, 2)),
        tensor(0, 8, (1.0, 2)),
        tensor(0, 8, (True, 2)),
        tensor(0, 8, ("1", 2)),
        tensor(0, 8, [1] * 65),
        {**tensor(0, 8), "shape": 2},
        {**tensor(0, 8), "shape": None},
        tensor(0, 8, dtype="F33"),
        tensor(0, 8, dtype="f32"),
        tensor(0, 8, dtype=None),
        tensor(0, 8, dtype=["F32"]),
        tensor(0, 1, (3,), dtype="F4"),
        {"dtype": "F32", "shape": [2]},
        {"shape": [2], "data_offsets": [0, 8]},
        [],
        None,
        "F32",
    ],
    ids=repr,
)
def test_an_impossible_tensor_is_named(tmp_path, fields):
    assert "'model.w'" in refusal(write(tmp_path, {"model.w": fields}, bytes(8)))


@pytest.mark.parametrize(
    ("offsets", "fault"), [((4, 12), "overlap"), ((0, 8), "overlap"), ((12, 20), "hole")], ids=str
)
def test_tensors_have_to_meet_end_to_end(tmp_path, offsets, fault):
    message = refusal(write(tmp_path, {"a": tensor(0, 8), "b": tensor(*offsets)}, bytes(20)))
    assert fault in message and "'b'" in message


def test_a_hole_before_the_first_tensor_is_refused(tmp_path):
    assert "hole after the header" in refusal(write(tmp_path, {"a": tensor(8, 16)}, bytes(16)))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b'{"w\xff": 1}',
        b'{"w": 1,}',
        b'{"w": ' + b"[" * 100_000,
        b'{"w": ' + b"9" * 5_000 + b"}",
    ],
    ids=lambda header: repr(header[:16]),
)
def test_a_header_that_is_no_json_object_is_refused(tmp_path, header):
    assert "header" in refusal(write(tmp_path, header))


def test_a_key_given_twice_is_refused_at_both_levels(tmp_path):
    one = json.dumps(tensor(0, 8))
    assert "'w' twice" in refusal(write(tmp_path, f'{{"w": {one}, "w": {one}}}'.encode(), bytes(8)))
    inner = '{"w": {"dtype": "F32", "dtype": "F16", "shape": [2], "data_offsets": [0, 8]}}'
    assert "'dtype' twice" in refusal(write(tmp_path, inner.encode(), bytes(8)))


def test_long_and_unprintable_names_stay_on_one_short_line(tmp_path):
    refusal(write(tmp_path, {"n\n\ud800" * 10_000: tensor(0, 4)}, bytes(8)))


def test_a_folder_or_nothing_in_the_files_place_is_refused(tmp_path):
    assert "no regular file" in refusal(tmp_path)
    refusal(tmp_path / "absent.safetensors")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
_NEAR_TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I8", "F4", "X"]) | _JSON,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | _JSON,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | _JSON,
    }
)
_NO_FIXTURE_CHECK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def read_or_refuse(file: Path) -> dict[str, TensorEntry] | None:
    """What is accepted has to lie within the file, and the reference reader has to accept it too."""
    try:
        entries = read_header(file)
    except CheckpointError:
        return None
    size_bytes = file.stat().st_size
    assert all(0 < entry.start <= entry.start + entry.size_bytes <= size_bytes for entry in entries.values())
    return entries


@_NO_FIXTURE_CHECK
@given(
    tensors=st.dictionaries(st.text(max_size=4), _NEAR_TENSOR | _JSON, max_size=3),
    data=st.binary(max_size=40),
)
def test_any_header_of_json_is_read_or_refused(tmp_path, tensors, data):
    read_or_refuse(write(tmp_path, tensors, data))


@_NO_FIXTURE_CHECK
@given(length=st.integers(0, 2**64 - 1) | st.integers(0, 80), rest=st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(tmp_path, length, rest):
    read_or_refuse(write(tmp_path, rest, length=length))


@_NO_FIXTURE_CHECK
@given(data=st.data())
def test_a_damaged_file_is_refused_or_still_sound(tmp_path, data):
    """Flip, drop or insert bytes anywhere in a good file."""
    good = write(tmp_path, {"a": tensor(0, 8), "b": tensor(8, 12, (2, 1), "BF16")}, bytes(12)).read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    dropped = data.draw(st.integers(0, 4))
    file = tmp_path / "model.safetensors"
    file.write_bytes(good[:place] + data.draw(st.binary(max_size=4)) + good[place + dropped :])
    if read_or_refuse(file) is None:
        return
    try:
        with safe_open(file, "pt") as reference:
            reference.keys()
    except SafetensorError as error:
        # the reference is stricter about what we ignore, and about names
        assert "metadata" in str(error).lower() or "invalid" in str(error).lower(), error
