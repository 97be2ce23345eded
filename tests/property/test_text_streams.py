"""Text in pieces against the one-shot decode, and stop strings against a search of each prefix's decode.

Run: pytest tests/property/test_text_streams.py
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.text_codecs import KINDS, SPECIAL, STREAMING, ids_of, make_codec

from tspec.runtime.text import REPLACEMENT, OutputText, TextStream

CODECS = {kind: make_codec(kind) for kind in KINDS}
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@st.composite
def random_ids(draw, kind, max_size=50):
    """Ids of all sorts, or of a few sorts only, as in runs."""
    vocab = st.integers(0, CODECS[kind].vocab_size - 1)
    few = draw(st.lists(vocab, min_size=1, max_size=4) | st.just(range(CODECS[kind].vocab_size)))
    return draw(
        st.lists(st.sampled_from(few), min_size=draw(st.sampled_from([0, max_size // 2])), max_size=max_size)
    )


CHARACTERS = {
    "byte level": [
        [b"xy\xe2", b"\x82", b"\xac!"],
        [b"xy\xe2", b"\x82\xac"],
        [b" a"],
        [b"ab"],
        [b"\n"],
        [b"z"],
    ],
    "llama": ["▁a", "▁", "c", "ab", "日", "€".encode(), b"\n", "🙂".encode(), b"A", *SPECIAL],
    "word piece": ["a", "##b", ".", "do", "日", "<tool>"],
    "suffixes": ["a</w>", "b", "c</w>", "日</w>"],
}
"""Pieces that together are whole characters only."""


@st.composite
def valid_ids(draw, kind):
    parts = draw(st.lists(st.sampled_from(CHARACTERS[kind]), max_size=16))
    return [token for part in parts for token in ids_of(kind, part if isinstance(part, list) else [part])]


def first_match(text, stops, ignored=0):
    """(end, start, stop) of the stop string that is complete first, of those the longest; None for none."""
    found = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and start + len(stop) > ignored
    ]
    return min(found, default=None)


def stops_of(draw, text):
    """Stop strings that are often in the text, and some that begin as a part of it does."""
    places = st.integers(0, max(0, len(text) - 1))
    pieces = st.builds(lambda start, size: text[start : start + size], places, st.integers(1, 4))
    ends = st.sampled_from(["", "", "a", " ", "!"])
    stops = draw(st.lists(st.builds(str.__add__, pieces, ends), min_size=1, max_size=3))
    return [stop for stop in stops if stop] or ["a"]


@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_pieces_of_any_ids_join_to_their_decode(kind, data):
    codec, ids, sizes = CODECS[kind], data.draw(random_ids(kind)), data.draw(SIZES)
    stream, pieces, start = TextStream(codec.decode, codec.decode_rules), [], 0
    while start < len(ids):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream.push(ids[start : start + size]))
        start += size
    assert "".join([*pieces, stream.finish()]) == codec.decode(ids)


@settings(deadline=None, max_examples=40)
@pytest.mark.parametrize("kind", STREAMING)
@given(data=st.data())
def test_what_was_given_out_holds_whatever_comes(kind, data):
    """Pieces so far begin the decode of every continuation, and miss no more of it than they have to."""
    codec, ids = CODECS[kind], data.draw(random_ids(kind))
    stream, given_out = TextStream(codec.decode, codec.decode_rules), ""
    for number, token in enumerate(ids, 1):
        given_out += stream.push([token])
        now = codec.decode(ids[:number])
        assert now.startswith(given_out)
        assert stream.is_open or len(now) - len(given_out) <= now.endswith(REPLACEMENT)


@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("kind", CHARACTERS)
@given(data=st.data())
def test_a_text_ends_with_the_token_that_completes_a_stop_string(kind, data):
    codec, ids = CODECS[kind], data.draw(valid_ids(kind))
    stops = stops_of(data.draw, codec.decode(ids))
    min_tokens, includes_stop = data.draw(st.integers(0, 4)), data.draw(st.booleans())
    texts = [codec.decode(ids[:number]).rstrip(REPLACEMENT) for number in range(len(ids) + 1)]
    ignored = max(len(text) for text in texts[: min_tokens + 1]) if min_tokens else 0
    ends = [number for number, text in enumerate(texts) if first_match(text, stops, ignored)]
    output = OutputText(
        codec.decode, codec.decode_rules, stops=stops, includes_stop=includes_stop, min_tokens=min_tokens
    )
    pieces = []
    for token in ids:
        is_done = output.push(token)
        pieces.append(output.take())
        if is_done:
            break
    number = len(pieces)
    output.finish()
    pieces.append(output.take())
    if not ends or ends[0] <= min_tokens:
        assert (output.stop, output.text) == (None, texts[-1])
    else:
        end, start, stop = first_match(texts[ends[0]], stops, ignored)
        assert (number, output.stop) == (ends[0], stop)
        assert output.text == texts[number][: end if includes_stop else start]
    assert "".join(pieces) == output.text


@settings(deadline=None, max_examples=40)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_no_stop_string_is_left_in_the_text_of_any_ids(kind, data):
    codec, ids = CODECS[kind], data.draw(random_ids(kind, 20))
    stops = stops_of(data.draw, codec.decode(ids))
    output, pieces, kept = OutputText(codec.decode, codec.decode_rules, stops=stops), [], []
    for token in ids:
        kept.append(token)
        if output.push(token):
            break
        pieces.append(output.take())
    output.finish()
    pieces.append(output.take())
    whole = codec.decode(kept)
    match = first_match(whole, stops)
    assert output.stop == (match and match[2])
    assert output.text == "".join(pieces) == (whole[: match[1]] if match else whole)
