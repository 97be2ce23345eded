"""Text in pieces: together they are the tokenizer's own decode, and none holds a part of a character.

Run: pytest tests/runtime/test_text.py
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import EOS, byte_tokenizer
from tokenizers import Tokenizer, decoders, models

from tspec.runtime.text import REPLACEMENT, TextStream

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.text("aé日🙂 \n", max_size=20)
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def decode(tmp_path_factory):
    """Of a tokenizer whose ids are the bytes of UTF-8."""
    tokenizer = byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


def split(ids: list[int], sizes: list[int]) -> list[list[int]]:
    """Cut ids into pieces of `sizes`, again and again."""
    pieces = []
    while ids:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(ids[:size])
        ids = ids[size:]
    return pieces


def pieces_of(decode, ids: list[int], sizes: list[int]) -> list[str]:
    stream = TextStream(decode)
    return [*(stream.push(piece) for piece in split(ids, sizes)), stream.finish()]


@settings(deadline=None)
@given(text=TEXTS, sizes=SIZES)
def test_pieces_of_a_text_join_to_it_and_hold_whole_characters(decode, text, sizes):
    pieces = pieces_of(decode, list(text.encode()), sizes)
    assert "".join(pieces) == text
    assert REPLACEMENT in text or not any(REPLACEMENT in piece for piece in pieces)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 255), max_size=40), sizes=SIZES)
def test_pieces_of_any_bytes_join_to_their_decode(decode, ids, sizes):
    pieces = pieces_of(decode, ids, sizes)
    assert "".join(pieces) == decode(ids)
    assert REPLACEMENT in decode(ids) or not any(REPLACEMENT in piece for piece in pieces)


@settings(deadline=None)
@given(text=TEXTS, sizes=SIZES, places=st.lists(st.integers(0, 40), max_size=5))
def test_special_tokens_between_the_bytes_of_a_character_are_no_text(decode, text, sizes, places):
    ids = list(text.encode())
    for place in places:
        ids.insert(place, EOS)
    assert "".join(pieces_of(decode, ids, sizes)) == text


def test_a_character_comes_out_with_its_last_byte(decode):
    stream = TextStream(decode)
    assert [stream.push([byte]) for byte in "é🙂!".encode()] == ["", "é", "", "", "", "🙂", "!"]


def test_a_character_that_never_ends_comes_out_as_the_tokenizer_shows_it(decode):
    stream = TextStream(decode)
    assert stream.push([ord("a"), *"日".encode()[:2]]) == ""
    assert stream.finish() == f"a{REPLACEMENT}"
    assert stream.finish() == ""


def test_text_that_is_certain_does_not_wait_for_a_long_tail(decode):
    """A byte that begins no character is shown as soon as something follows."""
    stream = TextStream(decode)
    assert stream.push([0xFF]) == ""
    assert stream.push([ord("x")]) == f"{REPLACEMENT}x"


def test_the_first_piece_has_nothing_of_a_prompt_that_ends_inside_a_character(decode):
    """Only output is decoded: the rest of the character is a stray byte, as in the tokenizer's decode of it."""
    output = [*"é".encode()[1:], *b"ab"]
    stream = TextStream(decode)
    assert stream.push(output[:1]) == ""
    assert stream.push(output[1:]) + stream.finish() == decode(output) == f"{REPLACEMENT}ab"


WORDS = ["▁a", "▁b", "c", "▁", "<0xE2>", "<0x82>", "<0xAC>", "<0x0A>"]


@pytest.fixture(scope="module")
def decode_words():
    """Of a tokenizer that marks spaces and strips the first one, with single bytes for rare characters."""
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="▁")
    )
    strip = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    return lambda ids: tokenizer.decode(list(ids))


@settings(deadline=None)
@given(words=st.lists(st.sampled_from([[0], [1], [2], [3], [4, 5, 6], [7]]), max_size=12), sizes=SIZES)
def test_spaces_between_pieces_come_out_as_in_the_whole(decode_words, words, sizes):
    ids = [number for word in words for number in word]
    assert "".join(pieces_of(decode_words, ids, sizes)) == decode_words(ids)


def test_a_push_decodes_a_few_tokens_however_long_the_text_is():
    lengths = []
    stream = TextStream(lambda ids: (lengths.append(len(ids)), "x" * len(ids))[1])
    for _ in range(1000):
        assert stream.push([1, 2]) == "xx"
    assert max(lengths) <= 4
