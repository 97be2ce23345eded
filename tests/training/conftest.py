"""What tests of whole runs share: each file has a `trained` of its own, the folder of a run and its records."""

import shutil

import pytest


@pytest.fixture
def with_texts(trained, tmp_path):
    """The folder of a run that has texts and is not trained yet."""
    out = tmp_path / "again"
    out.mkdir()
    for name in ("run.json", "texts.jsonl"):
        shutil.copy(trained[0] / name, out)
    return out
