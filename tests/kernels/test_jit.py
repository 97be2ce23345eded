"""Native functions compile once for all processes, and work wherever nothing can be written.

Run: python -m pytest tests/kernels/test_jit.py
"""

import importlib.util
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from tspec.kernels import jit

SOURCE = """
from tspec.kernels.jit import native

@native()
def double(number):
    return 2 * number
"""
REPORT = """
import sys
{before}
import functions
print(functions.double(21), functions.double.stats.cache_hits.total(), functions.double.stats.cache_path)
"""
NO_ACCOUNT = """
import pwd

def getpwuid(user):
    raise KeyError(user)

pwd.getpwuid = getpwuid
"""


@pytest.fixture
def source_file(tmp_path):
    file = tmp_path / "functions.py"
    file.write_text(SOURCE)
    return file


@pytest.fixture
def fresh_jit(monkeypatch):
    """The module as in a process that has decorated nothing yet."""
    jit.cache_folder.cache_clear()
    jit._log_once.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    jit.cache_folder.cache_clear()
    jit._log_once.cache_clear()


def report_of_process(source_file, before="", **environment):
    """Call `double` in a new process; return its result, its cache hits and its cache folder."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    root = str(Path(jit.__file__).parents[2])
    kept["PYTHONPATH"] = os.pathsep.join([root, str(source_file.parent), kept.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(before=before)],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    result, hits, folder = done.stdout.split(maxsplit=2)
    return int(result), int(hits), folder.strip(), done.stderr


def load(source_file):
    """Import the file anew: a function that has compiled nothing."""
    spec = importlib.util.spec_from_file_location("functions", source_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.double


def test_second_process_compiles_nothing(source_file, tmp_path):
    home = tmp_path / "cache"
    first = report_of_process(source_file, XDG_CACHE_HOME=str(home))
    second = report_of_process(source_file, XDG_CACHE_HOME=str(home))
    assert first[:2] == (42, 0)
    assert second[:2] == (42, 1)
    assert second[2].startswith(str(home / "tspec" / "jit"))


def test_without_home_or_account_the_cache_lies_among_temporary_files(source_file, tmp_path):
    first = report_of_process(source_file, before=NO_ACCOUNT, TMPDIR=str(tmp_path))
    second = report_of_process(source_file, before=NO_ACCOUNT, TMPDIR=str(tmp_path))
    assert (first[:2], second[:2]) == ((42, 0), (42, 1))
    folder = tmp_path / f"tspec-jit-{os.getuid()}"
    assert second[2].startswith(str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_home_that_cannot_be_written_works_and_is_reported(source_file, tmp_path):
    result, _, folder, errors = report_of_process(source_file, HOME="/dev/null", TMPDIR=str(tmp_path))
    assert result == 42
    assert folder.startswith(str(tmp_path))
    assert errors.count("cannot hold compiled code") == 1


def test_where_nothing_can_be_written_functions_still_work_and_say_so_once(source_file, fresh_jit, caplog):
    fresh_jit.setattr(jit, "_cache_parents", lambda: [Path("/dev/null/jit")])
    with caplog.at_level(logging.WARNING, logger="tspec"):
        assert load(source_file)(21) == 42
        assert load(source_file)(21) == 42
    assert [each.message for each in caplog.records if "every process" in each.message] == [
        "Native functions are compiled again in every process: no folder can hold them."
    ]


def test_function_releases_the_interpreter_lock_and_keeps_its_options(source_file):
    @jit.native(fastmath=True)
    def halve(number):
        return number / 2

    assert halve.targetoptions["nogil"]
    assert halve.targetoptions["fastmath"]


def test_numba_keeps_its_own_cache_folder(source_file):
    before = numba.config.CACHE_DIR
    load(source_file)
    assert before == numba.config.CACHE_DIR


def test_key_changes_with_any_byte_of_any_source(tmp_path):
    files = [tmp_path / "caller.py", tmp_path / "callee.py"]
    for file in files:
        file.write_text("one = 1\n")
    before = jit.source_key(files)
    assert jit.source_key(files) == before
    files[1].write_text("one = 2\n")
    assert jit.source_key(files) != before
    assert jit.source_key(files[:1]) != before


def test_key_covers_this_decorator_the_proposers_and_the_constants_of_core():
    names = {f"{file.parent.name}/{file.name}" for file in jit.native_sources()}
    assert {"kernels/jit.py", "core/tree.py", "proposers/ngram_index.py", "proposers/ngram.py"} <= names


def test_damaged_files_are_compiled_again_and_replaced(source_file, tmp_path, fresh_jit):
    fresh_jit.setattr(jit, "cache_folder", lambda: tmp_path / "folder")
    load(source_file)(21)
    for ending in ("*.nbi", "*.nbc"):
        for file in (tmp_path / "folder").rglob(ending):
            file.write_bytes(file.read_bytes()[:40])
        damaged, repaired = load(source_file), load(source_file)
        assert (damaged(21), damaged.stats.cache_hits.total()) == (42, 0)
        assert (repaired(21), repaired.stats.cache_hits.total()) == (42, 1)


def test_cache_that_can_no_longer_be_written_costs_nothing_but_time(source_file, tmp_path, fresh_jit):
    fresh_jit.setattr(jit, "cache_folder", lambda: tmp_path / "folder")
    double = load(source_file)
    for folder in (tmp_path / "folder").iterdir():
        folder.rmdir()
        folder.write_text("in the way")
    assert double(21) == 42


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_folder_that_others_may_write_is_refused(tmp_path, mode):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    assert not jit._is_private(folder)


def test_link_to_a_folder_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert not jit._is_private(tmp_path / "link")


def test_only_the_newest_keys_are_kept(tmp_path):
    keys = [f"{number:016x}" for number in range(jit.KEPT_KEYS + 3)]
    for age, key in enumerate(keys):
        (tmp_path / key).mkdir()
        os.utime(tmp_path / key, (1_000_000 - age, 1_000_000 - age))
    (tmp_path / "notes").mkdir()
    jit._prune(tmp_path, kept=keys[-1])
    assert {each.name for each in tmp_path.iterdir()} == {keys[-1], "notes", *keys[: jit.KEPT_KEYS - 1]}
