"""`tspec bench` decodes prompts both ways, compares the texts, and says which way was faster.

Run: pytest tests/cli/test_bench.py
"""

import json

import pytest
from support.sources import ROOT

import tspec.llm
from tspec import ConfigError
from tspec.cli.bench import PROMPTS
from tspec.core.text_files import read_json_lines
from tspec.llm import Result
from tspec.runtime.sequence import SequenceStats


def result(token_ids, num_passes, seconds):
    stats = SequenceStats(
        num_passes=num_passes, num_emitted=len(token_ids), start_s=0.0, first_token_s=1.0, end_s=1.0 + seconds
    )
    return Result([1], token_ids, "text", "length", stats)


class StandIn:
    """Decodes nothing: speculation takes half the passes and a quarter of the time."""

    speculative_ids = (5, 6, 7, 8, 9)

    def __init__(self, *_, **__):
        self.prompts = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def encode_chat(self, messages):
        return [len(messages[0]["content"])]

    def generate(self, prompt, params):
        if params.speculative == "off":
            return [result([5, 6, 7, 8, 9], 4, 2.0)]
        return [result(list(self.speculative_ids), 2, 0.5)]


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(tspec.llm, "LLM", StandIn)


def test_a_real_model_says_the_same_both_ways(run, tiny_folder):
    outcome = run("bench", tiny_folder, "--no-chat", "--max-tokens", 20)
    assert outcome.status == 0
    for word in ("plain", "auto", "tokens/s", "passes", "tokens per pass", "speed-up", "identical: yes"):
        assert word in outcome.out
    assert f"prompt {len(PROMPTS)} of {len(PROMPTS)}: 20 tokens" in outcome.err


def test_the_figures_are_sums_without_the_first_tokens(run, stand_in):
    outcome = run("bench", "folder", "--json")
    assert (outcome.status, json.loads(outcome.out)) == (
        0,
        {
            "plain": {
                "tokens_per_second": 2.0,
                "num_passes": 12,
                "tokens_per_pass": 1.0,
                "speed_up": 1.0,
                "is_identical": True,
            },
            "auto": {
                "tokens_per_second": 8.0,
                "num_passes": 6,
                "tokens_per_pass": 2.0,
                "speed_up": 4.0,
                "is_identical": True,
            },
        },
    )


def test_a_text_that_differs_is_a_failure(run, stand_in, monkeypatch):
    monkeypatch.setattr(StandIn, "speculative_ids", (5, 6, 7, 8, 1))
    table, figures = run("bench", "folder"), run("bench", "folder", "--json")
    assert (table.status, figures.status) == (1, 1)
    assert "identical: no, prompts [0, 1, 2]" in table.out
    ways = json.loads(figures.out)
    assert (ways["plain"]["is_identical"], ways["auto"]["is_identical"]) == (True, False)


def test_texts_of_one_token_have_no_pace(run, stand_in, monkeypatch):
    monkeypatch.setattr(StandIn, "generate", lambda *_: [result([5], 0, 0.0)])
    outcome = run("bench", "folder")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.endswith("Give prompts with longer answers.\n")


def test_prompts_come_from_json_lines(tmp_path):
    """Empty lines are passed over, and a line ends at a line feed alone."""
    file = tmp_path / "prompts.jsonl"
    lines = ['{"prompt": "one\\ntwo"}', "", '{"prompt": "a\u2028b\x85c", "category": "odd"}\r', ""]
    file.write_bytes("\n".join(lines).encode())
    assert read_json_lines(file, "prompt") == ["one\ntwo", "a\u2028b\x85c"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["no lines"]),
        (b"\n\n", ["no lines"]),
        (b'{"prompt": "a"}\n{"text": "b"}\n', ["line 2", "text"]),
        (b'{"prompt": 3}', ["line 1"]),
        (b'["prompt"]', ["line 1"]),
        (b"prompt", ["line 1"]),
        (b'{"prompt": "\xe9"}', ["byte 0xe9", "UTF-8"]),
    ],
    ids=str,
)
def test_a_wrong_file_of_prompts_is_wrong_usage(run, stand_in, tmp_path, content, words):
    (tmp_path / "prompts.jsonl").write_bytes(content)
    outcome = run("bench", "folder", "--prompts", tmp_path / "prompts.jsonl")
    outcome.assert_fails(2, "prompts.jsonl", *words)


def test_wrong_options_are_told_before_anything_is_read(run, tmp_path):
    run("bench", "no-folder", "--max-tokens", 1).assert_fails(2, "--max-tokens", "at least 2")
    run("bench", "no-folder", "--prompt-lookup-max", 0).assert_fails(2, "prompt_lookup_max")
    run("bench", "no-folder", "--prompts", tmp_path / "no.jsonl").assert_fails(2, "no.jsonl", "No such file")
    run("bench", "no-folder").assert_fails(1, "no-folder", "no such path")


def test_chat_prompts_need_a_template(run, tiny_folder):
    run("bench", tiny_folder).assert_fails(2, "chat template")


def test_the_prompts_of_the_demo_can_be_read():
    assert len(read_json_lines(ROOT / "examples" / "demo_prompts.jsonl", "prompt")) == 4
    assert len(read_json_lines(ROOT / "benchmarks" / "data" / "spec_bench.jsonl", "prompt")) == 7 * 13


def test_the_error_names_the_line(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n\n{}\n')
    with pytest.raises(ConfigError, match=r"line 3: got '\{\}'"):
        read_json_lines(file, "prompt")
