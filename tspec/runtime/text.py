"""A sequence's text as its tokens come: pieces that are certain, and where a stop string ends it.

The tokenizer's own decode makes all text, a few tokens at a time; nothing here knows a vocabulary.
"""

import codecs
import sys
from collections.abc import Callable, Sequence

from tspec.core.decode_rules import DecodeRules
from tspec.runtime.stops import StopMatch, StopMatcher

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_MIN_CONTEXT = 5
"""Tokens before new ones that are decoded with them: more than the bytes of a character, so that one that has not
ended is there in full, and enough for decoders that treat the first token or the first space in another way."""
_MAX_CONTEXT = 14


class TextStream:
    """Turns growing token ids into pieces of text whose concatenation is the decode of all of them.

    A piece is given out as soon as no further token can change it. What has to wait: a character whose bytes have not
    all come, a run of byte tokens (DecodeRules.byte_of) until another token ends it, and everything where the decode
    is not local.

    Cost   a decode of some ten tokens a call, whatever the length of the text; one of a run of byte tokens at its end
    """

    def __init__(self, decode: Decode, rules: DecodeRules | None = None) -> None:
        self._decode = decode
        self._rules = rules or DecodeRules()
        self._ids: list[int] = []  # those that new ones are decoded with, and the new ones
        self._num_given = 0  # characters of their decode that were given out
        self._num_open = 0  # byte tokens at their end, which others may still join
        self._has_news = False  # tokens that take() has not seen, and that are not in an open run
        self._run = codecs.getincrementaldecoder("utf-8")()
        self._is_run_valid = True

    @property
    def is_open(self) -> bool:
        """Whether the last token belongs to a run of byte tokens, whose text is not certain."""
        return self._num_open > 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Add ids; returns the text that is certain now, which may be empty."""
        self.add(token_ids)
        return self.take()

    def add(self, token_ids: Sequence[int]) -> str:
        """Add ids; returns the characters they complete in an open run, as far as all of it is valid UTF-8."""
        characters = ""
        for token in token_ids:
            if self._rules.is_skipped(token):
                continue
            self._ids.append(token)
            byte = self._rules.byte_of(token)
            if byte is None:
                self._num_open, self._has_news, characters = 0, True, ""
                continue
            if self._num_open == 0:
                self._run.reset()
                self._is_run_valid = True
            self._num_open += 1
            characters += self._read_byte(byte)
        return characters

    def take(self) -> str:
        """Return the text that has become certain since the last call."""
        if not self._has_news or not self._rules.is_local:
            return ""
        self._has_news = False
        text = self._decode(self._ids[: len(self._ids) - self._num_open])
        end = len(text) - text.endswith(REPLACEMENT)
        piece = text[self._num_given : end]
        self._num_given = max(self._num_given, end)
        if self._num_open == 0 and len(self._ids) > _MAX_CONTEXT:
            self._drop_context(len(text) - self._num_given)
        return piece

    def peek(self) -> str:
        """Return the text that would follow if the ids ended here, up to where bytes make no character."""
        if not self._rules.is_local:
            return ""
        return self._decode(self._ids)[self._num_given :].partition(REPLACEMENT)[0]

    def finish(self) -> str:
        """Return what was held back: an unfinished character comes out as the tokenizer decodes it."""
        text = self._decode(self._ids)
        piece = text[self._num_given :]
        self._num_given = len(text)
        return piece

    def _read_byte(self, byte: int) -> str:
        try:
            return self._run.decode(bytes([byte])) if self._is_run_valid else ""
        except UnicodeDecodeError:
            self._is_run_valid = False
            return ""

    def _drop_context(self, num_waiting: int) -> None:
        """Keep the last tokens only, of whose text `num_waiting` characters are not given out.

        Where the cut is inside a character or a run, the text kept begins with other characters than it did; they were
        given out, and no later token changes them.
        """
        kept = self._ids[-_MIN_CONTEXT:]
        num_given = len(self._decode(kept)) - num_waiting
        if num_given > 0:  # else no text is left that would take what is special about the first token
            self._ids, self._num_given = kept, num_given


class OutputText:
    """The text of one sequence: grows token by token, ends at a stop string, and never gives out a piece of one.

    The text ends where a stop string is first complete: before it, or after it with `includes_stop`. Stop strings are
    looked for in the output alone, across the borders of tokens, in text as the decode of the tokens so far has it;
    those that are complete within the first `min_tokens` tokens are passed over.

    stop   the stop string that ended the text
    """

    def __init__(
        self,
        decode: Decode,
        rules: DecodeRules | None = None,
        *,
        stops: Sequence[str] = (),
        includes_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self.stop: str | None = None
        self._stream = TextStream(decode, rules)
        self._matcher = StopMatcher(stops, sys.maxsize if min_tokens else 0) if stops else None
        self._ahead: StopMatcher | None = None
        self._includes_stop = includes_stop
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._pieces: list[str] = []
        self._num_taken = 0  # pieces
        self._num_final = 0  # characters of the pieces
        self._held = ""

    @property
    def text(self) -> str:
        """All text that is certain; after `finish`, all there is."""
        return "".join(self._pieces) + self._held

    def push(self, token: int, *, is_stop: bool = False) -> bool:
        """Add a token; returns whether a stop string is complete with it, after which none may be added.

        is_stop   the sequence ends with it, as with an end-of-sequence id: no text unless stops are included
        """
        if is_stop and not self._includes_stop:
            return False
        self._num_tokens += 1
        characters = self._stream.add((token,))
        self._add(self._stream.take())
        if self._matcher is not None and self.stop is None:
            self._look_ahead(self._matcher, characters)
        return self.stop is not None

    def finish(self) -> None:
        """Take what was held back. It may complete a stop string, too."""
        if self.stop is None:
            self._add(self._stream.finish())
        self._give(len(self._held))

    def take(self) -> str:
        """Return the text that has become certain, and is no piece of a stop string, since the last call."""
        piece = "".join(self._pieces[self._num_taken :])
        self._num_taken = len(self._pieces)
        return piece

    def _add(self, text: str) -> None:
        self._held += text
        match = self._matcher.push(text) if self._matcher is not None else None
        if match is not None:
            self._end(match)
        else:
            num_held = 0 if self._matcher is None or self._includes_stop else self._matcher.num_held
            self._give(len(self._held) - num_held)

    def _look_ahead(self, matcher: StopMatcher, characters: str) -> None:
        """Look for a stop string in an open run: a text that ends with it is certain, since it ends there.

        The characters are a hint, which the decode has to confirm.
        """
        if not self._stream.is_open:
            self._ahead = None
        elif self._ahead is None:
            self._ahead = matcher.fork()
        if self._ahead is not None and self._ahead.push(characters) is not None:
            text = self._stream.peek()
            self._ahead = matcher.fork()
            match = self._ahead.push(text)
            if match is not None:
                self._held += text
                self._end(match)
        if self._num_tokens == self._min_tokens:
            matcher.ignored = (self._ahead or matcher).length
            if self._ahead is not None:
                self._ahead.ignored = matcher.ignored

    def _end(self, match: StopMatch) -> None:
        end = match.end if self._includes_stop else match.start
        self.stop = match.stop
        self._held = self._held[: end - self._num_final]
        self._give(len(self._held))

    def _give(self, count: int) -> None:
        """The first `count` characters held are final."""
        if count > 0:
            self._pieces.append(self._held[:count])
            self._num_final += count
            self._held = self._held[count:]
