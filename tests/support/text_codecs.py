"""One small tokenizer of each kind that checkpoints come with, and what its ids are made of."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tspec.tokenizer import TextCodec

SPECIAL = ("<s>", "</s>")
ADDED = ("<tool>", "<日é>")
_BYTES = [f"<0x{byte:02X}>" for byte in sorted({*"A\n €é🙂\N{REPLACEMENT CHARACTER}".encode(), 0xFF})]
_PIECES = [
    "▁a",
    "▁b",
    "c",
    "▁",
    "▁▁",
    "ab",
    ".",
    "\N{REPLACEMENT CHARACTER}",
    "e\N{COMBINING ACUTE ACCENT}",
    "日",
]
_WORDS = ["a", "##b", ".", "'", "n't", "do", "not", "##", "s", "日"]
_SUFFIXED = ["a</w>", "b", "c</w>", ".", "</w>", "日</w>"]
_SPLIT = [
    b"xy\xe2",
    b"\x82\xac",
    b"\x82",
    b"\xac!",
    b"\xf0\x9f",
    b"\x99\x82 ",
    b"\xff",
    b"\xc3\xa9\xc3",
    b" a",
    b"ab",
]


def _spell(text: bytes) -> str:
    """Bytes as byte-level tokenizers write them."""
    printable = set(pre_tokenizers.ByteLevel.alphabet())
    others = iter(range(256, 512))
    letters = [chr(byte) if chr(byte) in printable else chr(next(others)) for byte in range(256)]
    return "".join(letters[byte] for byte in text)


def _metaspaced(*more: decoders.Decoder) -> decoders.Decoder:
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *more])


_KINDS: dict[str, tuple[list[str], decoders.Decoder | None]] = {
    "byte level": ([_spell(each) for each in (*_SPLIT, b"z", b"\n")], decoders.ByteLevel()),
    "llama": ([*_PIECES, *_BYTES], _metaspaced(decoders.Strip(" ", 1, 0))),
    "gemma": ([*_PIECES, *_BYTES], _metaspaced()),
    "metaspace": (_PIECES, decoders.Metaspace()),
    "metaspace with bytes": (
        [*_PIECES, *_BYTES],
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]),
    ),
    "word piece": (_WORDS, decoders.WordPiece(cleanup=True)),
    "word piece as it is": (_WORDS, decoders.WordPiece(cleanup=False)),
    "suffixes": (_SUFFIXED, decoders.BPEDecoder("</w>")),
    "joined by spaces": (_PIECES, None),
    "whole text": (_PIECES, decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("cc"), "d")])),
}
KINDS = tuple(_KINDS)
STREAMING = tuple(kind for kind in KINDS if kind != "whole text")


def make_codec(kind: str) -> TextCodec:
    """A codec whose ids are the kind's pieces, then ADDED and SPECIAL, then two ids without a token."""
    pieces, decoder = _KINDS[kind]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=pieces[0]))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_tokens([AddedToken(each, special=False) for each in ADDED])
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL])
    return TextCodec(Path(), tokenizer, tokenizer.get_vocab_size() + 2)


def ids_of(kind: str, pieces: Sequence[str | bytes]) -> list[int]:
    """The ids of pieces as the kind spells them; bytes are spelled byte by byte where it has tokens for single ones."""
    known = [*_KINDS[kind][0], *ADDED, *SPECIAL]
    ids = []
    for piece in pieces:
        if isinstance(piece, str):
            ids.append(known.index(piece))
        elif kind == "byte level":
            ids.append(known.index(_spell(piece)))
        else:
            ids += [known.index(f"<0x{byte:02X}>") for byte in piece]
    return ids
