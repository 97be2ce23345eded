"""`tspec generate` says in one sentence what is wrong, exits with 2 or 1, prints no text, and says it early.

Run: pytest tests/cli/test_generate_failures.py
"""

import os

import pytest
from support.checkpoints import edit_json
from support.command_line import start

import tspec.build
import tspec.llm


@pytest.fixture
def loads_nothing(monkeypatch):
    """The test fails if the weights are read."""

    def load(*_):
        pytest.fail("the weights were read before the error")

    monkeypatch.setattr(tspec.build, "pack_weights", load)


@pytest.fixture
def builds_nothing(monkeypatch):
    """The test fails if even the checkpoint's folder is looked at."""
    monkeypatch.setattr(tspec.llm, "LLM", lambda *_, **__: pytest.fail("an engine was built"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-tokens", -1], ["max_tokens", "-1", "at least 0"]),
        (["--prompt-lookup-min", 5, "--prompt-lookup-max", 3], ["prompt_lookup_min", "got 5", "at most"]),
        (["--prompt-lookup-min", 0], ["prompt_lookup_min", "got 0"]),
        (["--prompt-lookup-max", 17], ["prompt_lookup_max", "got 17"]),
        (["--num-speculative-tokens", 0], ["num_speculative_tokens", "got 0", "1 to 63"]),
        (["--num-speculative-tokens", 64], ["num_speculative_tokens", "got 64"]),
    ],
    ids=str,
)
def test_impossible_values_are_wrong_usage_before_anything_is_read(run, builds_nothing, options, words):
    run("generate", "no-such-folder", "--prompt", "a", *options).assert_fails(2, *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-tokens", "many"], ["--max-tokens", "'many'"]),
        (["--speculative", "magic"], ["--speculative", "'magic'", "ngram"]),
        (["--occurrence", "last"], ["--occurrence", "'last'", "latest"]),
        (["--file", "x"], ["--file", "--prompt"]),
        (["--temprature", "0"], ["--temprature"]),
    ],
    ids=str,
)
def test_unknown_options_and_words_are_wrong_usage(run, builds_nothing, options, words):
    run("generate", "folder", "--prompt", "a", *options).assert_is_refused(*words)


def test_input_that_is_not_utf_8_is_wrong_usage(run, builds_nothing, tmp_path):
    data = b"ok \xff\xfe"
    (tmp_path / "prompt.txt").write_bytes(data)
    found = ("byte 0xff at offset 3", "UTF-8")
    run("generate", "folder", stdin=data).assert_fails(2, "standard input", *found)
    run("generate", "folder", "--file", tmp_path / "prompt.txt").assert_fails(2, "prompt.txt", *found)
    run("generate", "folder", "--prompt", os.fsdecode(data)).assert_fails(2, "--prompt", *found)


def test_a_prompt_file_that_cannot_be_read_is_named(run, builds_nothing, tmp_path):
    run("generate", "folder", "--file", tmp_path / "no.txt").assert_fails(1, "no.txt", "No such file")
    run("generate", "folder", "--file", tmp_path).assert_fails(1, str(tmp_path), "directory")


def test_closed_standard_input_is_wrong_usage(run, builds_nothing):
    run("generate", "folder", stdin=None).assert_fails(2, "no standard input", "--prompt")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "int8"], ["dtype", "'int8'", "bfloat16"]),
        (["--max-model-len", 0], ["max_model_len", "got 0"]),
        (["--max-model-len", 257], ["max_model_len", "got 257", "256"]),
        (["--num-threads", 0], ["num_threads", "got 0"]),
    ],
    ids=str,
)
def test_wrong_options_of_the_model_are_told_before_the_weights_are_read(
    run, tiny_folder, loads_nothing, options, words
):
    run("generate", tiny_folder, "--prompt", "a", *options).assert_fails(2, *words)


def test_a_missing_folder_fails(run, tmp_path):
    run("generate", tmp_path / "no", "--prompt", "a").assert_fails(1, str(tmp_path / "no"), "no such path")


def test_a_file_in_place_of_the_folder_fails(run, tiny_folder):
    file = tiny_folder / "model.safetensors"
    run("generate", file, "--prompt", "a").assert_fails(1, str(file), "folder")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_without_one_of_its_files_fails(run, tiny_copy, loads_nothing, name):
    (tiny_copy / name).unlink()
    run("generate", tiny_copy, "--prompt", "a").assert_fails(1, name.split(".")[1])


@pytest.mark.parametrize("kept", [0.999, 0.5, 0.0])
def test_a_truncated_checkpoint_fails(run, tiny_copy, loads_nothing, kept):
    file = tiny_copy / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(kept * len(data))])
    run("generate", tiny_copy, "--prompt", "a").assert_fails(1, "model.safetensors", "bytes")


def test_a_config_that_disagrees_with_the_weights_fails(run, tiny_copy, loads_nothing):
    edit_json(tiny_copy / "config.json", intermediate_size=97)
    run("generate", tiny_copy, "--prompt", "a").assert_fails(1, "mlp.down_proj.weight", "97")


def test_an_empty_prompt_is_wrong_usage(run, tiny_folder):
    run("generate", tiny_folder, "--prompt", "").assert_fails(2, "no tokens")
    run("generate", tiny_folder, stdin=b"").assert_fails(2, "no tokens")


def test_a_prompt_longer_than_the_context_fails(run, tiny_folder):
    run("generate", tiny_folder, "--prompt", "a" * 256).assert_fails(1, "256 tokens", "at most 255")
    assert run("generate", tiny_folder, "--prompt", "a" * 255).status == 0


def test_text_needs_a_tokenizer(run, tiny_copy):
    (tiny_copy / "tokenizer.json").unlink()
    run("generate", tiny_copy, "--prompt", "a").assert_fails(2, "tokenizer.json")


def test_a_broken_tokenizer_fails(run, tiny_copy):
    (tiny_copy / "tokenizer.json").write_text("{")
    run("generate", tiny_copy, "--prompt", "a").assert_fails(1, "tokenizer.json")


def test_chat_without_a_template_is_wrong_usage(run, tiny_folder):
    run("generate", tiny_folder, "--chat", "--prompt", "a").assert_fails(2, "chat template", "got none")


def test_a_template_that_refuses_the_chat_fails(run, tiny_copy):
    (tiny_copy / "chat_template.jinja").write_text("{{ raise_exception('only in French') }}")
    run("generate", tiny_copy, "--chat", "--prompt", "a").assert_fails(1, "only in French")


def test_bytes_that_are_not_utf_8_as_an_argument_of_a_process():
    process = start("generate", "folder", "--prompt", b"a\xff")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"tspec generate: --prompt: got byte 0xff at offset 1") and err.count(b"\n") == 1
