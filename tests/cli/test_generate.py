"""`tspec generate` prints what the model says: streamed, as JSON, from each kind of input.

Run: pytest tests/cli/test_generate.py
"""

import json
import os

import pytest
from support.checkpoints import edit_json
from support.command_line import start
from support.tiny_models import BOS

from tspec import LLM, SamplingParams

PROMPT = "abc, abc, abc"


@pytest.fixture(scope="module")
def expected(tiny_folder):
    """40 tokens by the Python API, plain."""
    with LLM(tiny_folder) as llm:
        return llm.generate(PROMPT, SamplingParams(max_tokens=40))[0]


def as_json(outcome):
    assert (outcome.status, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_the_streamed_text_is_that_of_json_and_of_python(run, tiny_folder, expected):
    """The text has bytes that are no UTF-8 and characters of several bytes."""
    command = ("generate", tiny_folder, "--prompt", PROMPT, "--max-tokens", 40)
    streamed, printed = run(*command), as_json(run(*command, "--json"))
    assert (streamed.status, streamed.out, streamed.err) == (0, expected.text + "\n", "")
    assert printed["text"] == expected.text
    assert printed["token_ids"] == expected.token_ids


@pytest.mark.parametrize("method", ["ngram", "none"])
def test_speculation_changes_the_figures_and_never_the_text(run, tiny_folder, expected, method):
    command = ("generate", tiny_folder, "--prompt", PROMPT, "--max-tokens", 40, "--speculative", method)
    printed = as_json(run(*command, "--json"))
    assert printed["token_ids"] == expected.token_ids
    assert (printed["stats"]["num_candidates"] > 0) == (method == "ngram")


def test_json_has_the_counts(run, tiny_folder):
    printed = as_json(run("generate", tiny_folder, "--prompt", PROMPT, "--max-tokens", 9, "--json"))
    assert printed["finish_reason"] == "length"
    assert printed["num_prompt_tokens"] == len(PROMPT)
    assert printed["stats"]["num_emitted"] == len(printed["token_ids"]) == 9
    assert printed["stats"]["tokens_per_second"] > 0


def test_stats_go_to_standard_error(run, tiny_folder, expected):
    outcome = run("generate", tiny_folder, "--prompt", PROMPT, "--max-tokens", 40, "--stats")
    assert (outcome.status, outcome.out) == (0, expected.text + "\n")
    for name in ("tokens/s", "tokens per pass", "acceptance rate", "time to first token", "finish reason"):
        assert name in outcome.err


def test_a_prompt_comes_from_a_file_or_from_standard_input(run, tiny_folder, tmp_path):
    text = "grüße\nzwei Zeilen\n"
    (tmp_path / "prompt.txt").write_bytes(text.encode())
    command = ("generate", tiny_folder, "--max-tokens", 12, "--json")
    results = [
        as_json(run(*command, "--prompt", text)),
        as_json(run(*command, "--file", tmp_path / "prompt.txt")),
        as_json(run(*command, stdin=text.encode())),
    ]
    assert {result["num_prompt_tokens"] for result in results} == {len(text.encode())}
    assert results[0]["token_ids"] == results[1]["token_ids"] == results[2]["token_ids"]


def test_max_tokens_0_gives_an_empty_text(run, tiny_folder):
    command = ("generate", tiny_folder, "--prompt", PROMPT, "--max-tokens", 0)
    streamed, printed = run(*command, "--stats"), as_json(run(*command, "--json"))
    assert (streamed.status, streamed.out) == (0, "\n")
    assert (printed["text"], printed["token_ids"], printed["finish_reason"]) == ("", [], "length")


def test_decoding_ends_at_the_context_limit(run, tiny_folder):
    command = ("generate", tiny_folder, "--prompt", PROMPT, "--ignore-eos", "--json")
    printed = as_json(run(*command, "--max-tokens", 1000, "--max-model-len", 30))
    assert len(printed["token_ids"]) == 30 - len(PROMPT)
    assert printed["finish_reason"] == "length"


def test_an_end_of_sequence_id_stops_unless_it_is_ignored(run, tiny_copy, expected):
    stop = expected.token_ids[7]
    edit_json(tiny_copy / "config.json", eos_token_id=stop)
    (tiny_copy / "generation_config.json").unlink()
    command = ("generate", tiny_copy, "--prompt", PROMPT, "--max-tokens", 40, "--json")
    stopped, ignored = as_json(run(*command)), as_json(run(*command, "--ignore-eos"))
    assert stopped["token_ids"] == expected.token_ids[: expected.token_ids.index(stop) + 1]
    assert (stopped["finish_reason"], ignored["finish_reason"]) == ("stop", "length")
    assert ignored["token_ids"] == expected.token_ids


def test_chat_applies_the_template(run, tiny_copy):
    template = "{{ bos_token }}{% for message in messages %}[{{ message.content }}]{% endfor %}"
    (tiny_copy / "chat_template.jinja").write_text(template)
    (tiny_copy / "rendered.txt").write_text("<bos>[hi]")
    command = ("generate", tiny_copy, "--max-tokens", 5, "--json")
    chat = as_json(run(*command, "--chat", "--prompt", "hi"))
    plain = as_json(run(*command, "--file", tiny_copy / "rendered.txt"))
    assert chat["num_prompt_tokens"] == len([BOS, *"[hi]"])
    assert chat["token_ids"] == plain["token_ids"]


def test_bytes_on_standard_input_reach_the_model_as_a_process_of_its_own(tiny_folder, tmp_path):
    """With an ASCII locale too: input and output are UTF-8."""
    (tmp_path / "prompt.txt").write_bytes("é".encode())
    with (tmp_path / "prompt.txt").open("rb") as stdin:
        environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        process = start(
            "generate", tiny_folder, "--max-tokens", 30, stdin=stdin, env=os.environ | environment
        )
        out, err = process.communicate(timeout=120)
    with LLM(tiny_folder) as llm:
        text = llm.generate("é", SamplingParams(max_tokens=30))[0].text
    assert (process.returncode, err) == (0, b"")
    assert out.decode("utf-8") == text + "\n"
