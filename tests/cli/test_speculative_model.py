"""`--speculative-model FOLDER` proposes with whatever the folder holds, and changes no text.

Run: pytest tests/cli/test_speculative_model.py
"""

import json

import pytest
from support.head_checkpoints import write_authors, write_medusa
from support.tiny_heads import tiny_eagle, tiny_medusa
from support.tiny_models import EOS, byte_tokenizer, tiny_checkpoint

from tspec.build import load_config


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target and, by what they hold, folders to propose with."""
    root = tmp_path_factory.mktemp("folders")
    for name, layers in (("target", 3), ("draft model", 1)):
        tiny_checkpoint(root / name, "llama", layers=layers, vocab=EOS + 2)
        byte_tokenizer(root / name)
    target = load_config(root / "target")
    write_authors(root / "eagle", tiny_eagle(target, 3, aux=(0, 1, 2)))
    write_medusa(root / "medusa", tiny_medusa(target))
    return root


@pytest.fixture
def decoded(run, folders):
    """Returns a function that decodes with options and returns what --json says."""

    def decoded(*options):
        outcome = run(
            "generate", folders / "target", "--prompt", "abcab", "--max-tokens", 12, "--json", *options
        )
        assert outcome.status == 0, outcome.err
        return json.loads(outcome.out)

    return decoded


@pytest.mark.parametrize("name", ["draft model", "eagle", "medusa"])
@pytest.mark.parametrize("shape", [(), ("--draft-top-k", 2, "--draft-depth", 2)], ids=["chain", "tree"])
def test_the_folder_decides_the_method_and_the_text_stays(decoded, folders, name, shape):
    plain = decoded("--speculative", "none")
    found = decoded("--speculative", "union", "--speculative-model", folders / name, *shape)
    assert found["token_ids"] == plain["token_ids"]
    assert found["stats"]["num_candidates"] > 0 == plain["stats"]["num_candidates"]
    rounds = found["stats"]["rounds"]
    assert rounds["num_rounds"] == found["stats"]["num_drafts"]
    assert rounds["cost_ratio"] > 0 and rounds["measured_speed_up"] > 0 and rounds["expected_speed_up"] > 0


def test_drawn_chains_keep_a_seeds_text_where_they_are_matched_greedily(decoded, folders):
    options = ("--speculative", "union", "--speculative-model", folders / "draft model")
    options += ("--draft-sample-method", "probabilistic")
    assert decoded(*options)["token_ids"] == decoded("--speculative", "none")["token_ids"]


def test_a_method_that_the_folder_does_not_fit_is_refused(run, folders):
    outcome = run(
        "generate", folders / "target", "--prompt", "a", "--speculative", "eagle3",
        "--speculative-model", folders / "medusa",
    )  # fmt: skip
    assert outcome.status == 1
    assert "medusa" in outcome.err and "eagle3" in outcome.err


def test_a_method_without_a_model_says_what_is_missing(run, folders):
    outcome = run("generate", folders / "target", "--prompt", "a", "--speculative", "draft_model")
    assert outcome.status == 2
    assert "speculative model" in outcome.err


def test_bench_shows_several_methods_side_by_side(run, folders):
    """Those take the model that have a use for it; a single one that has none says so."""
    command = ("bench", folders / "target", "--no-chat", "--max-tokens", 20, "--json")
    model = ("--speculative-model", folders / "draft model")
    outcome = run(*command, "--speculative", "ngram", "draft_model", "auto", *model)
    assert outcome.status == 0, outcome.err
    ways = json.loads(outcome.out)
    assert list(ways) == ["plain", "ngram", "draft_model", "auto"]
    assert all(way["is_identical"] and way["tokens_per_second"] > 0 for way in ways.values())
    assert ways["plain"]["tokens_per_pass"] == 1.0 <= ways["draft_model"]["tokens_per_pass"]
    run(*command, "--speculative", "ngram", *model).assert_fails(2, "ngram")
