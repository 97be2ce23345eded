"""`tspec train-eagle` trains a head and says where it is; wrong usage is one sentence.

Run: pytest tests/cli/test_train_eagle.py
"""

import json

import pytest
from support.tiny_training import write_prompts

from tspec.training.hidden import Teacher

SMALL = ("--tokens", 120, "--epochs", 1, "--vocab", 64)


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl")


def test_a_head_is_trained_and_proposes(run, tiny_folder, prompts, tmp_path):
    command = ("train-eagle", tiny_folder, "--prompts", prompts, "--out", tmp_path / "out")
    outcome = run(*command, *SMALL)
    print(outcome.err)
    assert (outcome.status, outcome.out) == (0, f"{tmp_path / 'out' / 'head'}\n")
    assert "tokens per pass" in outcome.err
    used = run(
        "generate", tiny_folder, "--prompt", "abc", "--json", "--speculative-model", tmp_path / "out" / "head"
    )
    assert json.loads(used.out)["stats"]["num_candidates"] > 0
    other = run(*command, *SMALL, "--steps", 2)
    assert other.status == 2
    assert "a run with other settings" in other.err


@pytest.mark.parametrize(
    "options, message",
    [
        (
            ("--prompts", "nowhere.jsonl"),
            "nowhere.jsonl: got No such file or directory, need a file of JSON lines",
        ),
        (("--epochs", "0"), "num_epochs: got 0, need at least 1"),
    ],
)
def test_wrong_usage_is_one_sentence(run, tiny_folder, prompts, tmp_path, options, message):
    outcome = run("train-eagle", tiny_folder, "--prompts", prompts, "--out", tmp_path / "out", *options)
    assert (outcome.status, outcome.out) == (2, "")
    assert message in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_stopped_run_says_how_to_go_on(run, tiny_folder, prompts, tmp_path, monkeypatch):
    command = ("train-eagle", tiny_folder, "--prompts", prompts, "--out", tmp_path / "out", *SMALL)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Teacher, "observe", stop)
        outcome = run(*command)
    assert (outcome.status, outcome.out) == (130, "")
    assert "the same command goes on" in outcome.err
    before = (tmp_path / "out" / "texts.jsonl").read_bytes()
    assert run(*command).status == 0
    assert (tmp_path / "out" / "texts.jsonl").read_bytes() == before
