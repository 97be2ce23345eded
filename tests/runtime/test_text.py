"""Text in pieces: when each comes out, what is held back, and where stop strings end it.

That the pieces together are the tokenizer's decode, for any ids: tests/property/test_text_streams.py.

Run: pytest tests/runtime/test_text.py
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.text_codecs import STREAMING, ids_of, make_codec
from support.tiny_models import EOS, byte_tokenizer

from tspec.core.decode_rules import DecodeRules
from tspec.runtime.text import REPLACEMENT, OutputText, TextStream

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.text("aé日🙂 \n", max_size=20)


@pytest.fixture(scope="module")
def decode(tmp_path_factory):
    """Of a tokenizer whose ids are the bytes of UTF-8."""
    tokenizer = byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


def pieces_of(kind, pieces):
    """What a stream gives out for each token, and at the end."""
    codec = make_codec(kind)
    stream = TextStream(codec.decode, codec.decode_rules)
    return [*(stream.push([token]) for token in ids_of(kind, pieces)), stream.finish()]


def streamed(output, ids):
    """What an OutputText gives out for each token, up to the one that stops it, and at the end."""
    pieces = []
    for token in ids:
        is_done = output.push(token)
        pieces.append(output.take())
        if is_done:
            break
    output.finish()
    return [*pieces, output.take()]


@settings(deadline=None)
@given(text=TEXTS, places=st.lists(st.integers(0, 40), max_size=20))
def test_special_tokens_between_the_bytes_of_a_character_are_no_text(decode, text, places):
    ids = list(text.encode())
    for place in places:
        ids.insert(place, EOS)
    stream = TextStream(decode, DecodeRules(is_skipped=lambda token: token == EOS))
    pieces = [*(stream.push([token]) for token in ids), stream.finish()]
    assert "".join(pieces) == text
    assert REPLACEMENT in text or not any(REPLACEMENT in piece for piece in pieces)


def test_a_character_comes_out_with_its_last_byte(decode):
    stream = TextStream(decode)
    assert [stream.push([byte]) for byte in "é🙂!".encode()] == ["", "é", "", "", "", "🙂", "!"]


def test_whole_characters_do_not_wait_for_one_that_begins_in_the_same_token():
    assert pieces_of("byte level", [b"ab", b"xy\xe2", b"\x82", b"\xac!"]) == ["ab", "xy", "", "€!", ""]


def test_a_character_that_never_ends_comes_out_as_the_tokenizer_shows_it(decode):
    stream = TextStream(decode)
    assert stream.push([ord("a"), *"日".encode()[:2]]) == "a"
    assert stream.finish() == REPLACEMENT
    assert stream.finish() == ""


def test_bytes_that_begin_no_character_are_shown_one_by_one(decode):
    stream = TextStream(decode)
    assert [stream.push([byte]) for byte in b"\xff\xff\xffx"] == [
        "",
        REPLACEMENT,
        REPLACEMENT,
        f"{REPLACEMENT}x",
    ]


def test_a_run_of_byte_tokens_waits_for_its_end():
    """Until then a byte may come that makes each of them a replacement character."""
    assert pieces_of("llama", ["c", b"\n", "€".encode(), "c"]) == ["c", "", "", "", "", "\n€c", ""]
    assert pieces_of("llama", ["c", b"\n\xff", "c"]) == ["c", "", "", f"{REPLACEMENT * 2}c", ""]
    assert pieces_of("llama", [b"\n", "</s>", b"\xff"]) == ["", "", "", REPLACEMENT * 2]
    assert pieces_of("llama", ["c", b"\n"]) == ["c", "", "\n"]


def test_only_the_first_space_is_dropped():
    assert pieces_of("llama", ["▁a", "▁b", "</s>", "▁b", "▁", "▁a"]) == ["a", " b", "", " b", " ", " a", ""]
    assert pieces_of("llama", ["<s>", "▁", "▁", "c"]) == ["", "", " ", "c", ""]
    assert pieces_of("gemma", ["▁a", "▁b"]) == [" a", " b", ""]


def test_a_space_after_many_tokens_without_text_stays():
    """Here special tokens that the stream does not know of: nothing among them takes the space that is dropped."""
    codec = make_codec("llama")
    stream = TextStream(codec.decode)
    ids = ids_of("llama", ["▁a", *["</s>"] * 30, "▁b"])
    assert "".join(stream.push([token]) for token in ids) == "a b"


def test_combining_characters_come_out_with_their_token():
    accented = "e\N{COMBINING ACUTE ACCENT}"
    assert pieces_of("llama", ["c", accented, "c"]) == ["c", accented, "c", ""]


def test_words_and_suffixes_are_joined_as_in_the_whole():
    assert pieces_of("word piece", ["do", "n't", "##b", "."]) == ["do", "n't", "b", ".", ""]
    assert pieces_of("suffixes", ["a</w>", "b", "c</w>"]) == ["a", " b", "c", ""]


def test_a_decode_that_looks_at_the_whole_text_gives_it_at_the_end():
    assert pieces_of("whole text", ["c", "ab", "c", "c"]) == ["", "", "", "", "cabd"]


def test_the_first_piece_has_nothing_of_a_prompt_that_ends_inside_a_character(decode):
    """Only output is decoded: the rest of the character is a stray byte, as in the tokenizer's decode of it."""
    output = [*"é".encode()[1:], *b"ab"]
    stream = TextStream(decode)
    assert stream.push(output[:1]) == ""
    assert stream.push(output[1:]) + stream.finish() == decode(output) == f"{REPLACEMENT}ab"


@pytest.mark.parametrize("token", [b"z", b"\xff", "<tool>", "</s>"])
def test_a_push_decodes_a_few_tokens_however_long_the_text_is(token):
    codec, lengths = make_codec("byte level"), []
    stream = TextStream(lambda ids: (lengths.append(len(ids)), codec.decode(ids))[1], codec.decode_rules)
    (number,) = ids_of("byte level", [token])
    for _ in range(2000):
        stream.push([number])
    assert sum(lengths) <= 2000 * 16


def test_a_long_run_of_byte_tokens_is_decoded_a_few_times_in_all():
    codec, lengths = make_codec("llama"), []
    stream = TextStream(lambda ids: (lengths.append(len(ids)), codec.decode(ids))[1], codec.decode_rules)
    for token in ids_of("llama", ["c", *["🙂".encode()] * 500, *["c"] * 500]):
        stream.push([token])
    assert sum(lengths) <= 2500 * 16


@pytest.mark.parametrize("kind", STREAMING)
def test_text_without_stop_strings_is_streamed_as_it_is(kind):
    codec = make_codec(kind)
    ids = list(range(codec.vocab_size)) * 3
    output = OutputText(codec.decode, codec.decode_rules)
    assert "".join(streamed(output, ids)) == output.text == codec.decode(ids)
    assert output.stop is None


def test_a_stop_string_across_tokens_is_held_back_as_far_as_it_may_begin(decode):
    output = OutputText(decode, stops=["lo w"])
    assert streamed(output, b"hello world") == ["h", "e", "", "l", "", "", "", ""]
    assert (output.text, output.stop) == ("hel", "lo w")


def test_no_piece_of_a_stop_string_goes_out(decode):
    output = OutputText(decode, stops=["###"])
    assert streamed(output, b"a##b###c") == ["a", "", "", "##b", "", "", "", ""]
    assert (output.text, output.stop) == ("a##b", "###")


def test_a_beginning_of_a_stop_string_comes_out_at_the_end(decode):
    output = OutputText(decode, stops=["###"])
    assert streamed(output, b"a##") == ["a", "", "", "##"]
    assert (output.text, output.stop) == ("a##", None)


def test_a_stop_string_that_is_included_holds_nothing_back(decode):
    output = OutputText(decode, stops=["##"], includes_stop=True)
    assert streamed(output, b"a#b##c") == ["a", "#", "b", "#", "#", ""]
    assert (output.text, output.stop) == ("a#b##", "##")


def test_what_follows_a_stop_string_in_its_token_is_no_text():
    codec = make_codec("byte level")
    ids = ids_of("byte level", [b"z", b"xy\xe2", b"\x82\xac", b"ab", b"z"])
    for includes_stop, text in ((False, "zxy€"), (True, "zxy€a")):
        output = OutputText(codec.decode, codec.decode_rules, stops=["a"], includes_stop=includes_stop)
        assert "".join(streamed(output, ids)) == output.text == text


def test_a_stop_string_of_several_bytes_ends_with_its_last_one(decode):
    output = OutputText(decode, stops=["é🙂"])
    ids = list("aé🙂b".encode())
    assert [output.push(token) for token in ids[:7]] == [False] * 6 + [True]
    assert output.text == "a"


@pytest.mark.parametrize(
    ("stop", "count", "text"), [("\n", 2, "c"), ("c\n€", 5, ""), ("€", 5, "c\n"), ("\n€c", 6, "c")]
)
def test_a_stop_string_in_a_run_of_byte_tokens_is_seen_at_once(stop, count, text):
    """Text that ends there is certain, though a further byte might have changed it."""
    codec = make_codec("llama")
    ids = ids_of("llama", ["c", b"\n", "€".encode(), "c"])
    output = OutputText(codec.decode, codec.decode_rules, stops=[stop])
    assert [output.push(token) for token in ids[:count]] == [False] * (count - 1) + [True]
    assert (output.text, output.stop) == (text, stop)


def test_a_first_space_that_the_decode_drops_is_no_stop_string():
    codec = make_codec("llama")
    output = OutputText(codec.decode, codec.decode_rules, stops=[" "])
    assert not output.push(*ids_of("llama", [b" "]))
    assert output.push(*ids_of("llama", [b" "]))
    assert output.text == ""


def test_a_stop_string_in_what_was_held_back_counts_at_the_end(decode):
    output = OutputText(decode, stops=[REPLACEMENT])
    assert not output.push(ord("a"))
    assert not output.push(0xE2)
    output.finish()
    assert (output.text, output.stop) == ("a", REPLACEMENT)


@pytest.mark.parametrize(("min_tokens", "text"), [(0, "a"), (1, "a"), (2, "ab"), (4, "abbc"), (9, "abbcb")])
def test_stop_strings_count_after_min_tokens_only(decode, min_tokens, text):
    output = OutputText(decode, stops=["b"], min_tokens=min_tokens)
    streamed(output, b"abbcb")
    assert output.text == text


def test_a_stop_string_within_min_tokens_does_not_count_when_its_run_ends_later():
    codec = make_codec("llama")
    ids = ids_of("llama", ["c", b"\n", "€".encode(), "c", b"\n"])
    for min_tokens, text in ((1, "c"), (2, "c\n€c"), (5, "c\n€c")):
        output = OutputText(codec.decode, codec.decode_rules, stops=["\n"], min_tokens=min_tokens)
        assert "".join(streamed(output, ids)) == output.text == text
        assert output.stop == "\n"


def test_a_stop_string_may_begin_before_min_tokens(decode):
    output = OutputText(decode, stops=["ab"], min_tokens=1)
    assert streamed(output, b"abab") == ["", "", ""]
    assert output.text == ""


def test_a_token_that_ends_a_sequence_is_text_only_if_stops_are_included(decode):
    for includes_stop, text in ((False, "a"), (True, "ab")):
        output = OutputText(decode, includes_stop=includes_stop)
        output.push(ord("a"))
        assert not output.push(ord("b"), is_stop=True)
        output.finish()
        assert output.text == text
