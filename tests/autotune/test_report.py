"""`tspec autotune report`: the page stands alone, and says what the policy does.

Run: pytest tests/autotune/test_report.py
"""

import re
from dataclasses import replace

import pytest
from support.command_line import run

from tspec.checkpoint.policy_file import write_policy
from tspec.core.pass_costs import PassCosts
from tspec.core.policy import MethodPolicy, Policy, PolicyKey

__all__ = ["run"]

KEY = PolicyKey("a <fast> CPU", "avx512", "bfloat16", 2, "abc", "tspec 0.1.0")
PASSES = [
    {
        "rows": rows,
        "nodes": nodes,
        "context": context,
        "seconds": 1e-3 * (10 + rows * nodes) * (1 + context / 4096),
    }
    for context in (0, 1024)
    for rows in (1, 2, 4)
    for nodes in (1, 2, 4, 8)
]
KERNEL = {"kind": "linear_add", "shape": [576, 1536], "count": 30, "bytes_moved": 2 * 10**7, "flops": 10**8}
FIGURES = {
    "model": "a model",
    "max_tokens": 64,
    "num_prompts": [9, 3],
    "read_gb_s": 20.0,
    "tflops": 0.2,
    "passes": PASSES,
    "kernels": {"1": [{**KERNEL, "seconds": 9.0}], "8": [{**KERNEL, "seconds": 2e-3}]},
    "methods": {"ngram": {"chances": [[0.4], [0.6]], "reached": [100, 40]}},
}
POLICY = Policy(
    KEY,
    PassCosts((1, 8), (0.010, 0.014), (0.0, 1e-6)),
    {},
    {"ngram": MethodPolicy(5, None, 1, (-1, 0, 1, 2, 3, 4), 1.42, 1.37)},
    FIGURES,
)


@pytest.fixture
def file(tmp_path):
    write_policy(tmp_path / "policy.json", POLICY)
    return tmp_path / "policy.json"


def test_the_page_needs_no_other_file(run, file, tmp_path):
    page, picture = tmp_path / "page.html", tmp_path / "picture.png"
    found = run("autotune", "report", file, "--html", page, "--png", picture)
    assert found.status == 0, found.err
    text = page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in text and text.count("<svg") == 1
    assert not re.search(r'(?:src|href)="(?!#)', re.sub(r'xlink:href="#[^"]*"', "", text))
    for words in ("a &lt;fast&gt; CPU", "1.42x", "1.37x", "speed-up by method", "30 x down", "9 prompts"):
        assert words in text, words
    assert "<fast>" not in text


def test_the_tables_say_what_was_measured(run, file):
    found = run("autotune", "report", file)
    assert found.status == 0, found.err
    for words in ("1.42x", "1.40x", "40%", "60%", "30 x down", "50%", "memory"):
        assert words in found.out, words


def test_a_policy_without_kernels_has_a_page_too(run, file, tmp_path):
    figures = {name: each for name, each in FIGURES.items() if name not in ("kernels", "read_gb_s", "tflops")}
    write_policy(file, replace(POLICY, figures=figures))
    found = run("autotune", "report", file, "--html", tmp_path / "page.html")
    assert found.status == 0, found.err


def test_tuned_kernels_are_listed(run, file, tmp_path, monkeypatch):
    entry = (
        '{"device": "some GPU", "compiler": "x", "op": "linear_add", "dtype": "bfloat16", '
        '"shape": {"k": 64, "n": 32}, "config": {"block_n": 16}}'
    )
    monkeypatch.setenv("TSPEC_TUNED_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "tuned-v1.json").write_text(f'{{"schema": 1, "entries": [{entry}, 3]}}')
    found = run("autotune", "report", file)
    assert "some GPU" in found.out and "k=64 n=32" in found.out and "block_n=16" in found.out


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("passes", [], "passes"),
        ("passes", [{**PASSES[0], "seconds": -1}], "passes.0.seconds"),
        ("methods", {"ngram": {"chances": [[2.0]], "reached": [1]}}, "methods.ngram.chances.0.0"),
        ("kernels", {"8": [{"kind": "linear"}]}, "kernels.8.0"),
        ("num_prompts", 3, "num_prompts"),
    ],
)
def test_figures_that_cannot_be_are_named(run, file, name, value, words):
    write_policy(file, replace(POLICY, figures=FIGURES | {name: value}))
    run("autotune", "report", file).assert_fails(2, "figures of", words, "autotune policy")


def test_a_damaged_policy_is_one_sentence(run, file):
    file.write_text(file.read_text()[:100])
    run("autotune", "report", file).assert_fails(2, "no JSON", "autotune policy")
