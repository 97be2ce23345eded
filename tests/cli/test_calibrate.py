"""`tspec inspect HEAD --target CHECKPOINT --calibrate` measures an EAGLE-3 head with the layers next to those it names.

Run: pytest tests/cli/test_calibrate.py
"""

import pytest
from support.head_checkpoints import write_medusa, write_speculators
from support.tiny_heads import tiny_eagle, tiny_medusa
from support.tiny_models import EOS, byte_tokenizer, tiny_checkpoint

from tspec.build import load_config


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    tiny_checkpoint(folder, "llama", layers=6, vocab=EOS + 2, max_position_embeddings=1024)
    byte_tokenizer(folder)
    return folder


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("tspec.cli.calibrate.MAX_TOKENS", 6)


def test_each_offset_that_the_target_has_layers_for_is_measured(run, target, tmp_path):
    head = write_speculators(tmp_path / "head", tiny_eagle(load_config(target), 3, aux=(1, 3, 5)))
    outcome = run("inspect", head, "--target", target, "--calibrate")
    assert outcome.status == 0, outcome.err
    assert all(name in outcome.out for name in ("-1", "0, as published", "+1", "tokens per pass"))


def test_offsets_outside_the_target_are_left_out(run, target, tmp_path):
    head = write_speculators(tmp_path / "head", tiny_eagle(load_config(target), 3, aux=(0, 3, 6)))
    outcome = run("inspect", head, "--target", target, "--calibrate")
    assert outcome.status == 0, outcome.err
    cells = outcome.out.replace("│", " ").split()
    assert "0, as published" in outcome.out and "+1" not in cells and "-1" not in cells


def test_it_wants_a_target_and_an_eagle_head(run, target, tmp_path):
    medusa = write_medusa(tmp_path / "medusa", tiny_medusa(load_config(target)))
    head = write_speculators(tmp_path / "head", tiny_eagle(load_config(target), 3))
    alone = run("inspect", head, "--calibrate")
    other = run("inspect", medusa, "--target", target, "--calibrate")
    assert (alone.status, other.status) == (2, 2)
    assert "--target" in alone.err and "EAGLE" in other.err
