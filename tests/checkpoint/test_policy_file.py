"""Policy files come back as they were written; what is damaged, of another version or another machine is refused.

Run: pytest tests/checkpoint/test_policy_file.py
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tspec.checkpoint.policy_file import config_hash, read_policy, write_policy
from tspec.core.errors import ConfigError
from tspec.core.pass_costs import PassCosts
from tspec.core.policy import MethodPolicy, Policy, PolicyKey, RoundCosts
from tspec.core.speculative_config import SpeculativeConfig

KEY = PolicyKey("a CPU, 2 CPUs", "avx512", "bfloat16", 2, "abc", "tspec 0.1.0, numba 1")
COSTS = PassCosts((1, 8), (0.01, 0.02), (0.0, 1e-6), False, 1e-4)
CHAIN = (-1, 0, 1, 2, 3, 4)
METHODS = {
    "ngram": MethodPolicy(5, None, 1, CHAIN, 1.4, 1.3),
    "eagle3": MethodPolicy(
        6, 3, 2, (-1, 0, 0, 1, 1, 2, 3), 2.0, None, "head", RoundCosts(0.002, 0.001, 1e-4)
    ),
}
POLICY = Policy(KEY, COSTS, {"ngram": (0.1, 0.5)}, METHODS, {"passes": []})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.json"
    write_policy(path, POLICY)
    return path


def test_a_policy_comes_back(file):
    assert read_policy(file) == replace(POLICY, source=str(file))
    assert list(file.parent.iterdir()) == [file]


def changed(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.update(schema=2), "schema 2"),
        (lambda content: content.pop("schema"), "no policy"),
        (lambda content: content.update(more=1), "more"),
        (lambda content: content.pop("costs"), "costs"),
        (lambda content: content["key"].update(threads="2"), "key.threads"),
        (lambda content: content["costs"].update(seconds=[0.01]), "costs that cannot be"),
        (lambda content: content["costs"].update(seconds=[0.01, float("nan")]), "costs.seconds.1"),
        (lambda content: content["costs"].update(seconds=[0.01, -1.0]), "costs.seconds.1"),
        (lambda content: content["priors"].update(ngram=[0.5, 1.5]), "priors.ngram.1"),
        (lambda content: content["methods"].update(magic=content["methods"]["ngram"]), "a method 'magic'"),
        (lambda content: content["methods"]["ngram"].update(tree=[-1, 2, 1]), "a tree of ngram"),
        (
            lambda content: content["methods"]["ngram"].update(num_candidates=0),
            "methods.ngram.num_candidates",
        ),
    ],
)
def test_what_is_wrong_is_named(file, change, words):
    changed(file, change)
    with pytest.raises(ConfigError, match="autotune policy") as found:
        read_policy(file)
    assert words in str(found.value)


def test_no_file_no_json_and_no_object(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_policy(tmp_path / "none.json")
    for text in (b"", b"[]", b"3", b"{", b"\xff\xfe", b"[" * 100000):
        (tmp_path / "bad.json").write_bytes(text)
        with pytest.raises(ConfigError):
            read_policy(tmp_path / "bad.json")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_is_refused_or_harmless(file, data):
    """Any byte replaced, or the file cut: a policy that is legal, or a ConfigError."""
    whole = json.dumps(json.loads(file.read_text())).encode()
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = bytes([data.draw(st.integers(0, 255))])
    damaged = data.draw(st.sampled_from([whole[:place], whole[:place] + byte + whole[place + 1 :]]))
    other = file.with_name("damaged.json")
    other.write_bytes(damaged)
    try:
        policy = read_policy(other)
    except ConfigError:
        return
    policy.costs.by_nodes(8)
    for method in policy.methods:
        if method != "eagle3":
            policy.with_settings(SpeculativeConfig("ngram"), None)


@pytest.mark.parametrize("name", ["device", "backend", "dtype", "threads", "model", "libraries"])
def test_a_policy_holds_for_nothing_else(name):
    here = replace(KEY, **{name: 3 if name == "threads" else "other"})
    with pytest.raises(ConfigError, match=f"policy.json, measured {name}: got .*need .*autotune policy"):
        KEY.check(here, "policy.json")
    KEY.check(replace(here, **{name: getattr(KEY, name)}), "policy.json")


def test_settings_fill_in_what_the_user_left_open():
    ngram = SpeculativeConfig("ngram")
    assert POLICY.with_settings(ngram, None).num_speculative_tokens == 5
    assert POLICY.with_settings(replace(ngram, num_speculative_tokens=2), None).num_speculative_tokens == 2
    assert POLICY.with_settings(SpeculativeConfig("suffix"), None) == SpeculativeConfig("suffix")
    eagle = SpeculativeConfig("eagle3", model="folder")
    found = POLICY.with_settings(eagle, "head")
    assert (found.num_speculative_tokens, found.draft_depth, found.draft_top_k) == (6, 3, 2)
    assert POLICY.with_settings(replace(eagle, draft_depth=2), "head").draft_top_k == 1


def test_a_head_is_known_by_any_of_its_names():
    found = POLICY.with_settings(SpeculativeConfig("eagle", model="folder"), "head")
    assert (found.method, found.num_speculative_tokens) == ("eagle", 6)


def test_trees_are_no_default_where_candidates_are_drawn():
    """Only chains are drawn."""
    drawn = SpeculativeConfig("eagle3", model="folder", draft_sample_method="probabilistic")
    assert POLICY.with_settings(drawn, "head") == drawn


def test_auto_gets_the_shape_of_its_models_rounds_and_no_number():
    found = POLICY.with_settings(SpeculativeConfig("auto", model="folder"), "head")
    assert (found.num_speculative_tokens, found.draft_depth, found.draft_top_k) == (None, 3, 2)
    assert POLICY.with_settings(SpeculativeConfig("auto"), None) == SpeculativeConfig("auto")


def test_a_method_that_was_tuned_with_another_model_is_refused():
    for method in ("eagle3", "auto"):
        with pytest.raises(ConfigError, match="model of eagle3: got head, need other"):
            POLICY.with_settings(SpeculativeConfig(method, model="folder"), "other")
    draft = SpeculativeConfig("draft_model", model="folder")
    assert POLICY.with_settings(draft, "other") == draft


def test_configurations_are_told_apart(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    assert config_hash(tmp_path / "one") != config_hash(tmp_path / "two")
    with pytest.raises(ConfigError, match=r"config\.json"):
        config_hash(tmp_path)
