"""Text to ids and back by the files beside the weights, and what is wrong with them by name.

Run: pytest tests/test_tokenizer.py
"""

import json

import pytest
from support.tiny_models import BOS, EOS, byte_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tspec.core.errors import CheckpointError, ConfigError
from tspec.tokenizer import load_codec

VOCAB = EOS + 2
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tmp_path):
    byte_tokenizer(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", ["", "plain", "grüße \N{GRINNING FACE}\n", "\x00\x1b", " <bos> "])
def test_text_comes_back(folder, text):
    codec = load_codec(folder, VOCAB)
    assert codec.decode(codec.encode(text)) == text.replace("<bos>", "")


def test_special_tokens_are_no_text(folder):
    assert load_codec(folder, VOCAB).decode([BOS, ord("a"), EOS]) == "a"


def test_a_prompt_is_neither_cut_nor_filled_up(folder):
    """Whatever the tokenizer was saved with after its training."""
    tokenizer = byte_tokenizer(folder)
    tokenizer.enable_truncation(4)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert load_codec(folder, VOCAB).encode("abcdef") == list(b"abcdef")
    tokenizer.no_truncation()
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert load_codec(folder, VOCAB).encode("abcdef") == list(b"abcdef")


def test_a_tokenizer_of_another_model_is_refused(folder):
    with pytest.raises(CheckpointError, match=f"largest token id: got {EOS + 1}, need less than {EOS}"):
        load_codec(folder, EOS)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"model": {"type": "Magic"}}'])
def test_a_file_that_is_no_tokenizer_is_refused(folder, content):
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: got .*need a tokenizers file"):
        load_codec(folder, VOCAB)


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_chat_is_written_by_the_template(folder, place):
    template = "<bos>{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}<eos>"
    if place.endswith("jinja"):
        (folder / place).write_text(template)
    else:
        settings = json.loads((folder / place).read_text())
        (folder / place).write_text(json.dumps(settings | {"chat_template": template}))
    assert load_codec(folder, VOCAB).encode_chat(CHAT) == [BOS, *b"user:hi", EOS]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("<bos>{{ messages[0].content }}<eos>b", ([BOS], [EOS, ord("b")])),
        ("a{{ messages[0].content }}", ([ord("a")], [])),
        ("{{ messages[0].content | upper }}", None),
        (None, None),
    ],
)
def test_what_a_template_writes_around_the_users_turn(folder, template, expected):
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    assert load_codec(folder, VOCAB).around_user_turn() == expected


def test_a_chat_without_a_template_is_refused(folder):
    with pytest.raises(ConfigError, match="chat template: got none"):
        load_codec(folder, VOCAB).encode_chat(CHAT)


@pytest.mark.parametrize(
    "template",
    ["{% if", "{{ raise_exception('no') }}", "{{ a.b.c }}", "{{ 1 + 'a' }}"],
)
def test_a_template_that_fails_is_an_error_of_the_checkpoint(folder, template):
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(CheckpointError, match="chat template: got"):
        load_codec(folder, VOCAB).encode_chat(CHAT)


def test_settings_that_are_no_json_are_an_error_of_the_checkpoint(folder):
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="chat template: got"):
        load_codec(folder, VOCAB).encode_chat(CHAT)


@pytest.mark.parametrize(
    ("word", "sequences"),
    [
        ("ab", [tuple(b"ab")]),  # with a space it is longer, and ends alike
        ("  ab c", [tuple(b"ab c")]),
        (" ", [(32,)]),
        ("<eos>", [(EOS,)]),
    ],
)
def test_a_bad_word_is_a_sequence_of_tokens(folder, word, sequences):
    assert load_codec(folder, VOCAB).forbidden_sequences(word) == sequences


def test_a_bad_word_is_forbidden_with_a_space_before_it_too(folder):
    """Where a token has the space: other than the one of the word alone, and as many of them."""
    vocabulary = {"a": 0, "b": 1, "Ġ": 2, "Ġa": 3, "ab": 4, "Ġab": 5, "ba": 6, "Ġb": 7}
    merges = [("Ġ", "a"), ("a", "b"), ("Ġa", "b"), ("b", "a"), ("Ġ", "b")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="b $A b", special_tokens=[("b", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    codec = load_codec(folder, VOCAB)
    assert codec.forbidden_sequences("ab") == [(4,), (5,)]
    assert codec.forbidden_sequences(" abb") == [(4, 1), (5, 1)]
    assert codec.forbidden_sequences("ba") == [(6,)]  # a space makes two tokens of it
    with pytest.raises(ConfigError, match="bad_words: got 'xyz', need texts that have tokens"):
        codec.forbidden_sequences("xyz")
