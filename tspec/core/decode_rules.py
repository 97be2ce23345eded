"""How a tokenizer's decode puts tokens together, as far as a stream of its text has to know. Decodes nothing."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([+0-9A-Fa-f][0-9A-Fa-f])>")
_TOKEN_BY_TOKEN = {
    "BPEDecoder",
    "ByteFallback",
    "ByteLevel",
    "Fuse",
    "Metaspace",
    "Replace",
    "Strip",
    "WordPiece",
}
_FUSING = {"ByteLevel", "Fuse"}
"""Decoders that make one token of all, so that those after them see the whole text."""


@dataclass(frozen=True, slots=True)
class DecodeRules:
    """What each token is to the decode, and what the decode is to a part of the text.

    is_skipped   whether a token is no text and changes none around it: special tokens, ids without a token
    byte_of      the byte of a token that stands for one and is decoded together with all such tokens next to it:
                 where they are no UTF-8 as a whole, each of them becomes U+FFFD. None for other tokens
    is_local     whether text depends on a few tokens around it alone; else nothing is certain before the last token

    The defaults are those of a decode that has neither special tokens nor bytes.
    """

    is_skipped: Callable[[int], bool] = lambda token: False
    byte_of: Callable[[int], int | None] = lambda token: None
    is_local: bool = True


def read_decode_rules(
    decoder: Mapping[str, Any] | None, token_of: Callable[[int], str | None], special: Collection[int]
) -> DecodeRules:
    """Return the rules of a tokenizer whose decode drops special tokens.

    decoder    the entry of that name in a `tokenizer.json`
    token_of   how the vocabulary spells an id; None for an id without a token

    Source   https://docs.rs/tokenizers/latest/tokenizers/decoders: what each decoder does
    """
    chain = list(_flatten(decoder))
    has_bytes = any(each["type"] == "ByteFallback" for each in chain)

    @cache
    def is_skipped(token: int) -> bool:
        return token in special or token_of(token) is None

    @cache
    def byte_of(token: int) -> int | None:
        match = _BYTE_TOKEN.fullmatch(token_of(token) or "") if has_bytes else None
        return None if match is None else int(match[1], 16)

    return DecodeRules(is_skipped, byte_of, _is_local(chain))


def _flatten(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if decoder is None:
        return
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for each in decoder["decoders"]:
        yield from _flatten(each)


def _is_local(chain: list[Mapping[str, Any]]) -> bool:
    """Whether every decoder is known to work token by token, or character by character where all is one token."""
    is_fused = False
    for each in chain:
        kind = each["type"]
        if kind not in _TOKEN_BY_TOKEN or (kind == "Strip" and each["stop"] > 0):
            return False
        if is_fused and kind not in ("Fuse", "Strip") and not _replaces_characters(each):
            return False
        is_fused = is_fused or kind in _FUSING
    return True


def _replaces_characters(decoder: Mapping[str, Any]) -> bool:
    return decoder["type"] == "Replace" and len(decoder["pattern"].get("String", "")) == 1
