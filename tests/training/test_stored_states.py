"""Hidden states from files are those that the target computes, whatever happened to the files before.

Run: pytest tests/training/test_stored_states.py
"""

import pytest
import torch
from support.tiny_models import tiny_checkpoint

from tspec.core.errors import ConfigError
from tspec.training import stored_states
from tspec.training.hidden import Teacher, load_target
from tspec.training.stored_states import observing
from tspec.training.texts import Text

TEXTS = [
    Text(number, list(range(1, 3 + number)), list(range(40, 45 + 2 * number))) for number in (4, 0, 1, 7, 3)
]
ROOM = 32


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    tiny_checkpoint(folder, "llama", layers=6)
    model = load_target(folder, torch.device("cpu"), torch.float32)
    return Teacher(model, (2, 3), torch.arange(0, 128, 3), torch.device("cpu"))


def assert_same(one, other):
    assert one.spans == other.spans
    assert torch.equal(one.says, other.says)
    assert torch.equal(one.embedded, other.embedded)
    torch.testing.assert_close(one.scores, other.scores, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.aux, other.aux, rtol=1e-3, atol=1e-4)


def computed(teacher, texts):
    return teacher.batch(texts, teacher.observe(texts))


def fill(teacher, folder, stop_after=None):
    def on_progress(what, done, total):
        if done == stop_after:
            raise KeyboardInterrupt

    observe = observing(teacher, TEXTS, folder, ROOM, on_progress)
    return lambda texts: teacher.batch(texts, observe(texts))


@pytest.mark.parametrize("stop_after", [None, 1, 2])
def test_stored_states_are_those_that_are_computed(teacher, tmp_path, stop_after, monkeypatch):
    if stop_after is not None:
        with pytest.raises(KeyboardInterrupt):
            fill(teacher, tmp_path, stop_after)
    teach = fill(teacher, tmp_path)
    monkeypatch.setattr(teacher, "observe", None)  # nothing is computed any more
    again = fill(teacher, tmp_path)
    monkeypatch.undo()
    for batch in (TEXTS[:3], TEXTS[3:]):
        assert_same(teach(batch), computed(teacher, batch))
        assert_same(again(batch), computed(teacher, batch))


def test_a_deleted_file_is_made_again(teacher, tmp_path):
    fill(teacher, tmp_path)
    (tmp_path / "states.bin").unlink()
    assert_same(fill(teacher, tmp_path)(TEXTS), computed(teacher, TEXTS))


def test_files_of_other_texts_are_refused(teacher, tmp_path):
    fill(teacher, tmp_path)
    with pytest.raises(ConfigError, match="hidden states of"):
        observing(teacher, TEXTS[:2], tmp_path, ROOM, lambda *_: None)


def test_too_many_states_are_not_stored(teacher, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_states, "MAX_BYTES", 1000)
    assert_same(fill(teacher, tmp_path)(TEXTS), computed(teacher, TEXTS))
    assert list(tmp_path.iterdir()) == []
