"""What is read from a tokenizer's decoder: which tokens are bytes or no text, and whether text is certain early.

Run: pytest tests/core/test_decode_rules.py
"""

import json

import pytest
from support.text_codecs import SPECIAL, ids_of, make_codec
from tokenizers import Regex, decoders

from tspec.core.decode_rules import read_decode_rules

VOCAB = ["a", "<0x0A>", "<0x+5>", "<0x0a>", "<0xG1>", "<0x0A", "</s>"]


def rules_of(decoder):
    entry = None if decoder is None else json.loads(decoder.__getstate__())
    return read_decode_rules(entry, lambda token: VOCAB[token] if token < len(VOCAB) else None, {6})


def test_byte_tokens_are_those_that_the_decode_takes_for_bytes():
    nested = decoders.Sequence([decoders.Sequence([decoders.ByteFallback()]), decoders.Fuse()])
    assert [rules_of(nested).byte_of(token) for token in range(8)] == [None, 10, 5, 10, *[None] * 4]
    assert rules_of(decoders.ByteLevel()).byte_of(1) is None


def test_special_tokens_and_ids_without_a_token_are_no_text():
    rules = rules_of(None)
    assert [rules.is_skipped(token) for token in range(8)] == [False] * 6 + [True, True]
    rules = make_codec("llama").decode_rules
    assert all(rules.is_skipped(token) for token in ids_of("llama", SPECIAL))
    assert not any(rules.is_skipped(token) for token in ids_of("llama", ["<tool>", "c", b"\n"]))


@pytest.mark.parametrize(
    ("is_local", "decoder"),
    [
        (True, None),
        (True, decoders.ByteLevel()),
        (True, decoders.WordPiece()),
        (True, decoders.Replace(Regex("a+"), "b")),
        (True, decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)])),
        (False, decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")])),
        (False, decoders.Sequence([decoders.ByteLevel(), decoders.Replace(Regex("a"), "c")])),
        (False, decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()])),
        (False, decoders.Strip(" ", 0, 1)),
        (False, decoders.CTC()),
    ],
)
def test_text_is_certain_early_where_every_decoder_is_known_to_look_at_little(is_local, decoder):
    assert rules_of(decoder).is_local == is_local
