"""A head is trained from prompts alone, proposes better than an untrained one, and comes out the same each time.

Run: pytest tests/training/test_run.py
"""

import json
import shutil

import pytest
import torch
from support.tiny_training import PROMPTS, files_of, tiny_settings

from tspec import LLM, SamplingParams
from tspec.checkpoint.heads import open_head, target_ids
from tspec.checkpoint.hf_config import read_config
from tspec.core.errors import CheckpointError, ConfigError
from tspec.training.head import EagleHead, start_from_target
from tspec.training.hidden import load_target
from tspec.training.run import train_eagle
from tspec.training.settings import head_config
from tspec.training.texts import read_texts
from tspec.training.write import write_head

ASKED = ("count 99", "why not", "name a river")


@pytest.fixture(scope="module")
def trained(tiny_folder, tmp_path_factory):
    """The folder of a whole run, and its records."""
    out, records = tmp_path_factory.mktemp("run") / "out", []
    train_eagle(tiny_folder, PROMPTS, out, tiny_settings(), on_record=records.append)
    return out, records


@pytest.fixture
def with_texts(trained, tmp_path):
    """The folder of a run that has texts and is not trained yet."""
    out = tmp_path / "again"
    out.mkdir()
    for name in ("run.json", "texts.jsonl"):
        shutil.copy(trained[0] / name, out)
    return out


def answers(target, head=None):
    config = None if head is None else {"method": "eagle3", "model": head, "num_speculative_tokens": 3}
    with LLM(target, speculative_config=config) as llm:
        results = llm.generate(list(ASKED), SamplingParams(max_tokens=40))
        return [result.token_ids for result in results], llm.metrics()


def test_the_loss_falls_and_acceptance_rises(trained):
    held_out = [record for record in trained[1] if record.is_held_out]
    first = trained[1][0]
    assert len(held_out) == 3
    assert all(after < before - 1 for before, after in zip(first.loss, held_out[-1].loss, strict=True))
    assert held_out[-1].tokens_per_pass > first.tokens_per_pass + 0.3


def test_the_head_changes_no_text_and_is_accepted_more_often_than_an_untrained_one(
    trained, tiny_folder, tmp_path
):
    config = head_config(read_config(tiny_folder), tiny_settings())
    kept = torch.from_numpy(target_ids(open_head(trained[0] / "head", read_config(tiny_folder)))).long()
    untrained = EagleHead(config)
    start_from_target(untrained, load_target(tiny_folder, torch.device("cpu"), torch.float32), kept)
    write_head(tmp_path / "untrained", config, untrained.tensors(), kept, "tiny")
    plain, _ = answers(tiny_folder)
    texts, metrics = answers(tiny_folder, trained[0] / "head")
    other_texts, other_metrics = answers(tiny_folder, tmp_path / "untrained")
    assert texts == other_texts == plain
    assert metrics.tokens_per_pass > other_metrics.tokens_per_pass + 0.3


def test_the_engine_accepts_about_what_training_measured(trained, tiny_folder):
    _, metrics = answers(tiny_folder, trained[0] / "head")
    measured = [record for record in trained[1] if record.is_held_out][-1]
    assert metrics.tokens_per_pass == pytest.approx(measured.tokens_per_pass, abs=0.8)


def test_the_same_seed_and_texts_give_the_same_bytes_and_another_seed_does_not(
    trained, with_texts, tiny_folder
):
    again = train_eagle(tiny_folder, PROMPTS, with_texts, tiny_settings())
    assert files_of(again) == files_of(trained[0] / "head")
    for name in ("run.json", "state.pt"):
        (with_texts / name).unlink()
    shutil.rmtree(with_texts / "head")
    other = with_texts.parent / "other"
    other.mkdir()
    shutil.copy(trained[0] / "run.json", other)
    asked = json.loads((other / "run.json").read_text())
    asked["settings"]["seed"] = 1
    (other / "run.json").write_text(json.dumps(asked))
    shutil.copy(with_texts / "texts.jsonl", other)
    assert files_of(train_eagle(tiny_folder, PROMPTS, other, tiny_settings(seed=1))) != files_of(again)


@pytest.mark.parametrize("last", [1, 20])
def test_a_stopped_training_goes_on_to_the_same_bytes(trained, with_texts, tiny_folder, last):
    def stop(record):
        if record.update == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_eagle(tiny_folder, PROMPTS, with_texts, tiny_settings(), on_record=stop)
    rest = []
    head = train_eagle(tiny_folder, PROMPTS, with_texts, tiny_settings(), on_record=rest.append)
    assert rest[0].update == last + 1
    assert files_of(head) == files_of(trained[0] / "head")
    assert (with_texts / "records.jsonl").read_bytes() == (trained[0] / "records.jsonl").read_bytes()


def test_stopped_answers_go_on_to_the_same_texts(trained, tiny_folder, tmp_path):
    def stop(what, done, total):
        if what == "tokens of the target" and done > total / 2:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        train_eagle(tiny_folder, PROMPTS, out, tiny_settings(), on_progress=stop)
    assert 0 < len(read_texts(out / "texts.jsonl")) < len(read_texts(trained[0] / "texts.jsonl"))
    head = train_eagle(tiny_folder, PROMPTS, out, tiny_settings())
    assert files_of(head) == files_of(trained[0] / "head")


def test_the_run_leaves_a_picture_and_figures(trained):
    assert (trained[0] / "training.png").read_bytes().startswith(b"\x89PNG")
    lines = (trained[0] / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == [record.update for record in trained[1]]


def test_the_folder_of_another_run_is_left_alone(trained, tiny_folder):
    before = files_of(trained[0] / "head")
    with pytest.raises(ConfigError, match="a run with other settings"):
        train_eagle(tiny_folder, PROMPTS, trained[0], tiny_settings(num_epochs=4))
    with pytest.raises(ConfigError, match="a run with other prompts"):
        train_eagle(tiny_folder, PROMPTS[1:], trained[0], tiny_settings())
    assert files_of(trained[0] / "head") == before


def test_a_folder_with_other_things_is_left_alone(tiny_folder, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="a folder with other things"):
        train_eagle(tiny_folder, PROMPTS, tmp_path, tiny_settings())
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_a_target_of_an_unknown_family_is_refused_before_anything_is_written(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text('{"architectures": ["T5ForConditionalGeneration"]}')
    with pytest.raises(CheckpointError, match="T5ForConditionalGeneration"):
        train_eagle(target, PROMPTS, tmp_path / "out", tiny_settings())
    assert not (tmp_path / "out").exists()
