"""Tuned configurations in their file: what is found again, what is set aside and told, and writers that collide or die.

Run: pytest tests/kernels/test_tuned_store.py
"""

import json
import logging
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
from support.sources import ROOT

from tspec.core.errors import ConfigError, ContractError
from tspec.kernels import tuned_store
from tspec.kernels.cuda import store as cuda_store
from tspec.kernels.cuda.store import open_store, read_table
from tspec.kernels.cuda.tuned import (
    AttentionTuned,
    Tuned,
    TunedTable,
)
from tspec.kernels.tuned_store import FOLDER_VARIABLE, SCHEMA, tuned_file

H200, ARCH, BF16 = "NVIDIA H200", "sm_90", "bfloat16"
FOUND = Tuned(64, 64, 2, 4, 6)
ATTENTION = AttentionTuned(chunk_tiles=8, row_tile=32, num_warps=8, num_stages=2)
SQUARE = {"n": 4096, "k": 4096}
HEADS = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, caplog):
    tuned_store._log_once.cache_clear()
    caplog.set_level(logging.INFO, "tspec")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "tuned"))
    return tmp_path / "tuned"


def written(folder):
    """The file with one product and one attention in it."""
    store = open_store(H200, ARCH)
    store.put("linear_add", BF16, FOUND, **SQUARE)
    store.put("rope_attention", BF16, ATTENTION, **HEADS)
    return folder / f"tuned-v{SCHEMA}.json"


def changed(file, change):
    """Rewrite the first entry of the file."""
    content = json.loads(file.read_text())
    change(content["entries"][0])
    file.write_text(json.dumps(content))


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_what_was_put_is_found_by_the_next_process_and_nothing_else_is(folder, caplog):
    written(folder)
    store = open_store(H200, ARCH)
    assert store.lookup("linear_add", BF16, **SQUARE) == FOUND
    assert store.lookup("rope_attention", BF16, **HEADS) == ATTENTION
    assert store.lookup("linear", BF16, **SQUARE) is None
    assert store.lookup("linear_add", "float16", **SQUARE) is None
    assert store.lookup("linear_add", BF16, n=4096, k=2048) is None
    assert caplog.records == []


def test_a_second_put_replaces_the_first(folder):
    file = written(folder)
    better = replace(FOUND, num_stages=3)
    open_store(H200, ARCH).put("linear_add", BF16, better, **SQUARE)
    assert open_store(H200, ARCH).lookup("linear_add", BF16, **SQUARE) == better
    assert len(json.loads(file.read_text())["entries"]) == 2


def test_a_missing_file_is_an_empty_one_and_reading_makes_none(folder, caplog):
    assert open_store(H200, ARCH).entries == {}
    assert not folder.exists()
    assert caplog.records == []


def test_a_file_that_ends_anywhere_is_a_miss_that_is_told_once(folder, caplog):
    file = written(folder)
    whole = file.read_bytes()
    for end in range(len(whole.rstrip())):
        file.write_bytes(whole[:end])
        tuned_store._log_once.cache_clear()
        caplog.clear()
        assert read_table(H200, ARCH) == TunedTable()
        assert read_table(H200, ARCH) == TunedTable()
        (told,) = warnings(caplog)
        assert str(file) in told
        assert "is no JSON" in told


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"\x00\xff" * 100, b"[]", b"null", b"7", b"NaN", b"{}", b"[" * 100_000),
        *(b'{"schema": 2, "entries": []}', b'{"schema": 1}', b'{"schema": 1, "entries": {}}'),
    ],
    ids=lambda garbage: repr(garbage[:30]),
)
def test_garbage_is_a_miss_that_is_told_and_kept_beside_the_file_that_replaces_it(folder, caplog, garbage):
    file = written(folder)
    file.write_bytes(garbage)
    store = open_store(H200, ARCH)
    assert store.entries == {}
    assert [str(file) in told for told in warnings(caplog)] == [True]
    store.put("linear_add", BF16, FOUND, **SQUARE)
    assert open_store(H200, ARCH).lookup("linear_add", BF16, **SQUARE) == FOUND
    assert file.with_name(f"{file.name}.damaged").read_bytes() == garbage


MALFORMED = {
    "no object": lambda entry: entry.clear(),
    "a field too many": lambda entry: entry.update(rows=3),
    "a field too few": lambda entry: entry.pop("dtype"),
    "device is a number": lambda entry: entry.update(device=7),
    "shape is a list": lambda entry: entry.update(shape=[4096, 4096]),
    "a size is a float": lambda entry: entry["shape"].update(n=4096.0),
    "a size is 0": lambda entry: entry["shape"].update(n=0),
    "config is a text": lambda entry: entry.update(config="fast"),
    "a number is a bool": lambda entry: entry["config"].update(num_warps=True),
    "a number is a text": lambda entry: entry["config"].update(num_warps="4"),
}
ILLEGAL = {
    "an op without a kernel": lambda entry: entry.update(op="conv"),
    "a dtype without a kernel": lambda entry: entry.update(dtype="int32"),
    "a shape with rows": lambda entry: entry["shape"].update(rows=16),
    "a shape without k": lambda entry: entry["shape"].pop("k"),
    "a number too many": lambda entry: entry["config"].update(chunk_tiles=4),
    "a number too few": lambda entry: entry["config"].pop("split_k"),
    "a number that is missing": lambda entry: entry["config"].update(split_k=None),
    "block_n no power of two": lambda entry: entry["config"].update(block_n=96),
    "block_k of 8": lambda entry: entry["config"].update(block_k=8),
    "block_k negative": lambda entry: entry["config"].update(block_k=-64),
    "more splits than there may be": lambda entry: entry["config"].update(split_k=16),
    "more splits than steps": lambda entry: (entry["shape"].update(k=64), entry["config"].update(split_k=2)),
    "a split of the head": lambda entry: entry.update(op="head"),
    "3 warps": lambda entry: entry["config"].update(num_warps=3),
    "no stage": lambda entry: entry["config"].update(num_stages=0),
    "AMD's instruction": lambda entry: entry["config"].update(matrix_side=16),
    "more shared memory than there is": lambda entry: entry["config"].update(block_n=128, block_k=256),
    "another order of squares": lambda entry: (
        entry.update(op="norm_linear"),
        entry["config"].update(num_warps=8),
    ),
}


@pytest.mark.parametrize("fault", [*MALFORMED, *ILLEGAL])
def test_a_bad_entry_is_told_and_set_aside_and_the_others_are_used(folder, caplog, fault):
    file = written(folder)
    changed(file, (MALFORMED | ILLEGAL)[fault])
    store = open_store(H200, ARCH)
    assert list(store.entries.values()) == [ATTENTION]
    (told,) = warnings(caplog)
    assert str(file) in told
    assert "Entry 0: " in told


ILLEGAL_ATTENTION = {
    "a chunk of 3 tiles": {"chunk_tiles": 3},
    "48 rows": {"row_tile": 48},
    "2 warps": {"num_warps": 2},
    "9 stages": {"num_stages": 9},
    "more shared memory than there is": {"num_stages": 8},
}


@pytest.mark.parametrize("fault", ILLEGAL_ATTENTION)
def test_an_illegal_configuration_of_attention_is_set_aside(folder, caplog, fault):
    file = written(folder)
    content = json.loads(file.read_text())
    content["entries"][1]["config"] |= ILLEGAL_ATTENTION[fault]
    file.write_text(json.dumps(content))
    assert list(open_store(H200, ARCH).entries.values()) == [FOUND]
    assert len(warnings(caplog)) == 1


def test_entries_of_another_compiler_are_told_with_both_versions_and_not_used(folder, caplog):
    file = written(folder)
    changed(file, lambda entry: entry.update(compiler="triton 2.0.0"))
    store = open_store(H200, ARCH)
    assert list(store.entries.values()) == [ATTENTION]
    (told,) = warnings(caplog)
    assert "triton 2.0.0" in told
    assert store.compiler in told


def test_entries_of_another_device_are_not_used_and_stay_in_the_file(folder, caplog):
    written(folder)
    other = open_store("NVIDIA B200", "sm_100")
    assert other.entries == {}
    assert warnings(caplog) == []
    assert "2 entries are for other devices" in caplog.text
    other.put("linear_add", BF16, replace(FOUND, split_k=1), **SQUARE)
    assert open_store(H200, ARCH).lookup("linear_add", BF16, **SQUARE) == FOUND
    assert len(open_store(H200, ARCH).entries) == 2


def test_an_illegal_configuration_cannot_be_put(folder):
    file = written(folder)
    before = file.read_bytes()
    store = open_store(H200, ARCH)
    with pytest.raises(ContractError, match="num_warps of linear_add: got 3"):
        store.put("linear_add", BF16, replace(FOUND, num_warps=3), **SQUARE)
    with pytest.raises(ContractError, match="shape of linear_add: got k, n, nodes, need k, n"):
        store.put("linear_add", BF16, FOUND, **SQUARE, nodes=16)
    assert store.lookup("linear_add", BF16, **SQUARE) == FOUND
    assert file.read_bytes() == before


@pytest.mark.parametrize("asked", ["", "a file"])
def test_a_folder_that_is_none_is_an_error(tmp_path, monkeypatch, asked):
    (tmp_path / "a file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FOLDER_VARIABLE, asked)
    with pytest.raises(ConfigError, match=FOLDER_VARIABLE):
        tuned_file()


def test_without_the_variable_the_file_lies_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setattr(
        tuned_store.platformdirs, "user_cache_dir", lambda name, appauthor: str(tmp_path / name)
    )
    assert tuned_file() == tmp_path / "tspec" / "tuned" / f"tuned-v{SCHEMA}.json"


def test_a_folder_that_cannot_be_written_is_an_error_of_who_writes_alone(tmp_path, monkeypatch, caplog):
    (tmp_path / "a file").touch()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "a file" / "below"))
    store = open_store(H200, ARCH)
    assert [str(store.file) in told for told in warnings(caplog)] == [True]
    with pytest.raises(ConfigError, match="need to write it"):
        store.put("linear_add", BF16, FOUND, **SQUARE)


WRITER = """
import sys
from dataclasses import dataclass
from tspec.kernels.tuned_store import load_tuned, tuned_file

@dataclass(frozen=True)
class Config:
    number: int

store = load_tuned(tuned_file(), sys.argv[1], "none", lambda key, numbers: Config(**numbers))
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    store.put("op", "float32", Config(number), n=number + 1)
    print(number, flush=True)
"""


def start_writer(device, start, end):
    command = [sys.executable, "-c", WRITER, device, str(start), str(end)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def numbers_in_file():
    content = json.loads(tuned_file().read_text())
    return sorted((entry["device"], entry["config"]["number"]) for entry in content["entries"])


def test_two_writers_at_once_lose_nothing(folder):
    writers = [start_writer(device, 0, 60) for device in ("first", "second")]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    assert numbers_in_file() == [(device, number) for device in ("first", "second") for number in range(60)]


def test_a_killed_writer_leaves_a_file_with_all_that_it_had_finished(folder):
    """And the lock free: the next writer is not kept waiting."""
    finished = []
    for round_number in range(5):
        writer = start_writer("killed", start := 1000 * round_number, start + 1000)
        finished.append(int(writer.stdout.readline()))
        time.sleep(0.003 * round_number)
        writer.send_signal(signal.SIGKILL)
        finished += [int(line) for line in writer.communicate(timeout=60)[0].split()]
        assert {("killed", number) for number in finished} <= set(numbers_in_file())
    assert cuda_store.open_store(H200, ARCH).entries == {}
    last = start_writer("last", 0, 1)
    assert last.communicate(timeout=30)[0] == "0\n"
    assert ("last", 0) in numbers_in_file()


def test_the_numbers_of_a_configuration_are_what_the_file_holds(folder):
    file = written(folder)
    first, second = json.loads(file.read_text())["entries"]
    assert first["config"] == asdict(FOUND)
    assert second["shape"] == HEADS
