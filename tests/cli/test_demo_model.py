"""`tspec demo-model` prints the folder of the demo model, and nothing else on standard output.

Run: pytest tests/cli/test_demo_model.py
"""

import pytest

from tspec.checkpoint import demo_model
from tspec.core.errors import CheckpointError


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Stand in for the conversion; gives the cache folders that were asked for."""
    folders = []

    def ensure(cache_dir, on_progress):
        folders.append(cache_dir)
        for step in range(3):
            on_progress("convert the weights", step, 2)
        return tmp_path / "models" / "demo"

    monkeypatch.setattr(demo_model, "ensure_demo_model", ensure)
    return folders


def test_the_folder_is_printed(run, asked, tmp_path):
    outcome = run("demo-model")
    assert (outcome.status, outcome.out) == (0, f"{tmp_path / 'models' / 'demo'}\n")
    assert asked == [None]


def test_the_cache_folder_can_be_chosen(run, asked, tmp_path):
    assert run("demo-model", "--cache-dir", tmp_path).status == 0
    assert asked == [tmp_path]


def test_missing_packages_are_wrong_usage(run, monkeypatch, tmp_path):
    monkeypatch.setattr(demo_model.importlib.util, "find_spec", lambda name: None)
    outcome = run("demo-model", "--cache-dir", tmp_path)
    outcome.assert_fails(2, "no gguf and no accelerate", "pip install tspec[demo]")


def test_a_failed_conversion_leaves_nothing_behind(run, monkeypatch, tmp_path):
    def fail(folder, report):
        (folder / "config.json").write_text("{}")
        raise CheckpointError("weights", got="half of them", need="all", fix="Try again.")

    monkeypatch.setattr(demo_model, "_build", fail)
    monkeypatch.setattr(demo_model, "_require_packages", lambda: None)
    run("demo-model", "--cache-dir", tmp_path).assert_fails(1, "half of them", "Try again")
    assert [file.name for file in (tmp_path / "models").iterdir() if not file.name.endswith(".lock")] == []


def test_a_cache_that_cannot_be_written_fails(run, monkeypatch, tmp_path):
    monkeypatch.setattr(demo_model, "_require_packages", lambda: None)
    (tmp_path / "file").write_text("")
    run("demo-model", "--cache-dir", tmp_path / "file").assert_fails(1, "demo model", "can be written")
