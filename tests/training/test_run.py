"""A head is trained from prompts alone, proposes better than an untrained one, and comes out the same each time.

Run: pytest tests/training/test_run.py
"""

import json
import shutil

import pytest
import torch
from filelock import FileLock
from support.checkpoints import edit_json
from support.tiny_training import PROMPTS, files_of, learnable_checkpoint, tiny_settings

from tspec import LLM, SamplingParams
from tspec.checkpoint.heads import open_head, target_ids
from tspec.checkpoint.hf_config import read_config
from tspec.core.errors import CheckpointError, ConfigError
from tspec.training import texts
from tspec.training.eagle import train_eagle
from tspec.training.head import EagleHead, start_from_target
from tspec.training.hidden import load_target
from tspec.training.run import claim_folder
from tspec.training.settings import head_config
from tspec.training.texts import read_texts
from tspec.training.write import write_head

ASKED = ("ABBA", "+1-1=0", "X")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """The folder of a target whose texts can be learned."""
    return learnable_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def trained(target, tmp_path_factory):
    """The folder of a whole run, and its records."""
    out, records = tmp_path_factory.mktemp("run") / "out", []
    train_eagle(target, PROMPTS, out, tiny_settings(), on_record=records.append)
    return out, records


def answers(target, head=None):
    """Texts after some prompts, and tokens per pass."""
    config = None if head is None else {"method": "eagle3", "model": head, "num_speculative_tokens": 3}
    with LLM(target, speculative_config=config) as llm:
        # One by one: requests at once share the candidates of a pass.
        results = [llm.generate(prompt, SamplingParams(max_tokens=40))[0] for prompt in ASKED]
        return [result.token_ids for result in results], llm.metrics().tokens_per_pass


def test_the_loss_falls_and_acceptance_rises(trained):
    held_out = [record for record in trained[1] if record.is_held_out]
    first = trained[1][0]
    assert len(held_out) == 2
    assert all(after < before / 20 for before, after in zip(first.loss, held_out[-1].loss, strict=True))
    assert first.tokens_per_pass < 1.2
    assert held_out[-1].tokens_per_pass > 3.4


def test_the_head_changes_no_text_and_is_accepted_more_often_than_an_untrained_one(trained, target, tmp_path):
    config = head_config(read_config(target), tiny_settings())
    kept = torch.from_numpy(target_ids(open_head(trained[0] / "head", read_config(target)))).long()
    untrained = EagleHead(config)
    start_from_target(untrained, load_target(target, torch.device("cpu"), torch.float32), kept)
    write_head(tmp_path / "untrained", config, untrained.tensors(), kept, "tiny")
    plain, _ = answers(target)
    texts, tokens_per_pass = answers(target, trained[0] / "head")
    other_texts, others_tokens_per_pass = answers(target, tmp_path / "untrained")
    assert texts == other_texts == plain
    assert others_tokens_per_pass < 1.2
    measured = [record for record in trained[1] if record.is_held_out][-1]
    assert tokens_per_pass == pytest.approx(measured.tokens_per_pass, abs=0.5)


def test_the_same_seed_and_texts_give_the_same_bytes_and_another_seed_does_not(trained, with_texts, target):
    head = train_eagle(target, PROMPTS, with_texts, tiny_settings())
    assert files_of(head) == files_of(trained[0] / "head")
    other = with_texts.parent / "other"
    claim_folder(other, target, PROMPTS, tiny_settings(seed=1))
    shutil.copy(with_texts / "texts.jsonl", other)
    assert files_of(train_eagle(target, PROMPTS, other, tiny_settings(seed=1))) != files_of(head)


@pytest.mark.parametrize("last", [1, 20])
def test_a_stopped_training_goes_on_to_the_same_bytes(trained, with_texts, target, last):
    def stop(record):
        if record.update == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_eagle(target, PROMPTS, with_texts, tiny_settings(), on_record=stop)
    rest = []
    head = train_eagle(target, PROMPTS, with_texts, tiny_settings(), on_record=rest.append)
    assert rest[0].update == last + 1
    assert files_of(head) == files_of(trained[0] / "head")
    assert (with_texts / "records.jsonl").read_bytes() == (trained[0] / "records.jsonl").read_bytes()


def test_stopped_answers_go_on_to_the_same_texts(trained, target, tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "NUM_AT_A_TIME", 4)  # so that they do not all end at once

    def stop(what, done, total):
        if what == "tokens of the target" and done > total / 2:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        train_eagle(target, PROMPTS, out, tiny_settings(), on_progress=stop)
    assert 0 < len(read_texts(out / "texts.jsonl")) < len(read_texts(trained[0] / "texts.jsonl"))
    head = train_eagle(target, PROMPTS, out, tiny_settings())
    assert files_of(head) == files_of(trained[0] / "head")


def test_the_run_leaves_a_picture_and_figures(trained):
    assert (trained[0] / "training.png").read_bytes().startswith(b"\x89PNG")
    lines = (trained[0] / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == [record.update for record in trained[1]]


def test_the_folder_of_another_run_is_left_alone(trained, target):
    before = files_of(trained[0] / "head")
    with pytest.raises(ConfigError, match="a run with other settings"):
        train_eagle(target, PROMPTS, trained[0], tiny_settings(num_epochs=4))
    with pytest.raises(ConfigError, match="a run with other prompts"):
        train_eagle(target, PROMPTS[1:], trained[0], tiny_settings())
    assert files_of(trained[0] / "head") == before


def test_two_processes_do_not_train_in_one_folder(target, with_texts):
    with FileLock(with_texts / ".lock"), pytest.raises(ConfigError, match="another process"):
        train_eagle(target, PROMPTS, with_texts, tiny_settings())


def test_a_folder_with_other_things_is_left_alone(target, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="a folder with other things"):
        train_eagle(target, PROMPTS, tmp_path, tiny_settings())
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_a_target_of_an_unknown_family_is_refused_before_anything_is_written(target, tmp_path):
    other = tmp_path / "target"
    other.mkdir()
    shutil.copy(target / "config.json", other)
    edit_json(other / "config.json", architectures=["T5ForConditionalGeneration"])
    with pytest.raises(CheckpointError, match="T5ForConditionalGeneration"):
        train_eagle(other, PROMPTS, tmp_path / "out", tiny_settings())
    assert not (tmp_path / "out").exists()
