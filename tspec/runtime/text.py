"""Incremental detokenisation: text as tokens come, never a part of a character."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Turns growing token ids into pieces of text whose concatenation is the tokenizer's own decode.

    A window of ids that were given out before is decoded with the new ones, so that spaces and joins between
    tokens come out as in the whole. Cost: a window of a few tokens a call, whatever the length of the text.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._window = 0
        self._given = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Add ids; returns the text that is certain now, which may be empty."""
        self._ids.extend(token_ids)
        return self._take(is_last=False)

    def finish(self) -> str:
        """Return what was held back: an unfinished character comes out as the tokenizer decodes it."""
        return self._take(is_last=True)

    def _take(self, *, is_last: bool) -> str:
        before = self._decode(self._ids[self._window : self._given])
        after = self._decode(self._ids[self._window :])
        if not is_last and after.endswith(REPLACEMENT):
            return ""
        self._window, self._given = self._given, len(self._ids)
        return after[len(before) :]
