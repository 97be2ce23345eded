"""`tspec autotune policy` from a checkpoint to a file, and engines that start from it.

Run: pytest tests/autotune/test_policy.py
"""

import json

import pytest
from support.command_line import run

from tspec import LLM, ConfigError, SamplingParams
from tspec.checkpoint.policy_file import read_policy, write_policy

__all__ = ["run"]

ENGINE = {"num_threads": 1, "kv_cache_mib": 32}


@pytest.fixture(scope="module")
def policy_file(proposer_folders, tmp_path_factory):
    """A policy of the tiny target with a draft model that is right about everything."""
    from autotune.policy import model_configs
    from autotune.policy_run import Job, make_policy
    from tspec.build import BuildOptions

    file = tmp_path_factory.mktemp("policy") / "policy.json"
    options = BuildOptions(**ENGINE, max_num_seqs=2)
    models = model_configs([proposer_folders / "copy"], [])
    prompts = ["abcabcabcabcab", "the cat and the dog and the cat and"]
    make_policy(Job(proposer_folders / "target", models, prompts, 24, options, lambda *_: None), file)
    return file


def test_the_file_says_what_each_method_gives(policy_file):
    policy = read_policy(policy_file)
    assert policy.methods.keys() == {"ngram", "suffix", "auto", "draft_model"}
    assert all(each.predicted_speed_up > 0 for each in policy.methods.values())
    assert all(each.measured_speed_up > 0 for each in policy.methods.values())
    assert policy.priors.keys() == {"ngram", "suffix", "draft_model"}
    draft = policy.methods["draft_model"]
    assert draft.model is not None and draft.costs.first_s > 0
    assert len(draft.tree) == draft.num_candidates + 1
    rows = {(each["rows"], each["nodes"], each["context"]) for each in policy.figures["passes"]}
    assert {(1, 1, 0), (2, 8, 0)} <= rows and len(rows) == len(policy.figures["passes"])
    assert sum(policy.figures["methods"]["draft_model"]["chances"][0]) == pytest.approx(1.0, abs=0.1)


def test_an_engine_measures_nothing_and_says_the_same(policy_file, proposer_folders, monkeypatch):
    target, params = proposer_folders / "target", SamplingParams(max_tokens=16)
    with LLM(target, speculative_config={"method": "none"}, **ENGINE) as llm:
        plain = llm.generate(["abcabc"], params)[0].token_ids

    def measures(*arguments, **options):
        raise AssertionError("measured at the start")

    for name in ("time_passes", "time_plain", "time_rounds"):
        monkeypatch.setattr(f"tspec.build_proposer.{name}", measures)
    for config in (
        None,
        {"method": "ngram"},
        {"method": "draft_model", "model": proposer_folders / "copy"},
        {"method": "auto", "model": proposer_folders / "copy"},
    ):
        with LLM(target, speculative_config=config, policy=policy_file, **ENGINE) as llm:
            assert llm.generate(["abcabc"], params)[0].token_ids == plain


def test_the_policys_number_of_candidates_is_the_default(policy_file, proposer_folders):
    policy = read_policy(policy_file)
    fewer = policy.methods["ngram"].num_candidates
    for given, most in ((None, fewer), (1, 1)):
        config = {"method": "ngram", "num_speculative_tokens": given}
        with LLM(proposer_folders / "target", speculative_config=config, policy=policy_file, **ENGINE) as llm:
            result = llm.generate(["abababababababab"], SamplingParams(max_tokens=24))[0]
        assert len(result.stats.candidates_by_position) <= most


def test_a_policy_of_another_model_or_other_threads_is_refused(policy_file, proposer_folders, tmp_path):
    with pytest.raises(ConfigError, match=r"measured model: got .*autotune policy"):
        LLM(proposer_folders / "other", policy=policy_file, **ENGINE)
    with pytest.raises(ConfigError, match="measured threads: got 1, need 2"):
        LLM(proposer_folders / "target", policy=policy_file, **ENGINE | {"num_threads": 2})
    with pytest.raises(ConfigError, match="model of draft_model"):
        config = {"method": "draft_model", "model": proposer_folders / "other"}
        LLM(proposer_folders / "target", speculative_config=config, policy=policy_file, **ENGINE)


def test_priors_of_other_classes_are_refused(policy_file, proposer_folders, tmp_path):
    from dataclasses import replace

    policy = read_policy(policy_file)
    write_policy(tmp_path / "policy.json", replace(policy, priors={"ngram": (0.5, 0.5)}))
    with pytest.raises(ConfigError, match="priors of ngram: got 2 classes"):
        LLM(proposer_folders / "target", policy=tmp_path / "policy.json", **ENGINE)


def test_the_command_writes_a_policy_that_generate_reads(run, proposer_folders, tmp_path):
    prompts, file = tmp_path / "prompts.jsonl", tmp_path / "policy.json"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("abcabcab", "xyzxyzxy")))
    target = proposer_folders / "target"
    made = run("autotune", "policy", target, "--out", file, "--prompts", prompts, "--max-tokens", 8)
    assert made.status == 0, made.err
    assert "speed-up by method" in made.out and "suffix" in made.out
    found = run("generate", target, "--prompt", "abcab", "--max-tokens", 8, "--policy", file, "--json")
    assert found.status == 0, found.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-tokens", "1"), ("--max-tokens", "at least 2")),
        (("--speculative-config", "{"), ("--speculative-config", "no JSON")),
        (("--speculative-config", "[]"), ("--speculative-config", "an object")),
        (("--speculative-config", '{"method": "ngram"}'), ("method ngram", "always tuned")),
    ],
)
def test_wrong_usage_is_one_sentence(run, tmp_path, arguments, words):
    run("autotune", "policy", tmp_path, "--out", tmp_path / "out.json", *arguments).assert_fails(2, *words)
    assert not (tmp_path / "out.json").exists()


def test_a_model_of_each_method_once(proposer_folders):
    from autotune.policy import model_configs

    folders = [proposer_folders / "copy", proposer_folders / "other"]
    with pytest.raises(ConfigError, match="models: got draft_model, draft_model, need one of each method"):
        model_configs(folders, [])
