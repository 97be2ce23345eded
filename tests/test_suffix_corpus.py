"""What suffix lookup knows from a file, and what is wrong with such a file.

Run: pytest tests/test_suffix_corpus.py
"""

import json

import pytest
from support.table_model import table_checkpoint
from support.tiny_models import EOS, byte_tokenizer

from tspec import LLM, ConfigError, SamplingParams

A, B, C, D = b"abcd"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that says abcd again and again."""
    folder = tmp_path_factory.mktemp("model")
    table_checkpoint(folder, {A: B, B: C, C: D, D: A}, vocab=EOS + 3, eos_token_id=EOS)
    byte_tokenizer(folder)
    return folder


def corpus(tmp_path, *texts):
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def accepted_at_once(folder, **speculative):
    """Candidates accepted in the first round after `xab`, of which nothing has come before."""
    with LLM(folder, num_threads=1, speculative_config=speculative) as llm:
        result = llm.generate("xab", SamplingParams(max_tokens=3))[0]
    assert result.text == "cda"
    return result.stats.num_accepted


@pytest.mark.parametrize("method", ["suffix", "union"])
def test_a_corpus_is_known_from_the_start(folder, tmp_path, method):
    file = corpus(tmp_path, "zzz", "bcda")
    assert accepted_at_once(folder, method=method) == 0
    assert accepted_at_once(folder, method=method, suffix_corpus=file) > 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("", "no lines"),
        ('{"prompt": "a"}\n', 'line 1: got .*need a JSON object with a string "text"'),
    ],
)
def test_a_wrong_file_is_named_before_weights_are_read(folder, tmp_path, content, message):
    file = tmp_path / "corpus.jsonl"
    if content is not None:
        file.write_text(content)
    said = []
    with pytest.raises(ConfigError, match=message):
        LLM(folder, speculative_config={"suffix_corpus": file}, on_progress=lambda *what: said.append(what))
    assert said == []


def test_a_checkpoint_without_a_tokenizer_cannot_read_texts(folder, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        LLM(bare, speculative_config={"suffix_corpus": corpus(tmp_path, "a")})
