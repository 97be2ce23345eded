"""`tspec train-draft` trains a draft model and says where it is; wrong usage is one sentence.

Run: pytest tests/cli/test_train_draft.py
"""

import json

import pytest
from support.tiny_training import write_prompts

SMALL = ("--tokens", 120, "--epochs", 1, "--layers", 1)


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl")


def test_a_draft_model_is_trained_and_proposes(run, tiny_folder, prompts, tmp_path):
    command = ("train-draft", tiny_folder, "--prompts", prompts, "--out", tmp_path / "out", *SMALL)
    outcome = run(*command)
    draft = tmp_path / "out" / "draft"
    assert (outcome.status, outcome.out) == (0, f"{draft}\n")
    assert "tokens per pass" in outcome.err
    used = run("generate", tiny_folder, "--prompt", "abc", "--json", "--speculative-model", draft)
    assert json.loads(used.out)["stats"]["num_candidates"] > 0


def test_too_many_layers_are_refused_before_anything_is_written(run, tiny_folder, prompts, tmp_path):
    command = ("train-draft", tiny_folder, "--prompts", prompts, "--out", tmp_path / "out", "--layers", 2)
    outcome = run(*command)
    assert (outcome.status, outcome.out) == (2, "")
    assert "num_layers: got 2, need fewer than the target's 2" in outcome.err
    assert not (tmp_path / "out").exists()
