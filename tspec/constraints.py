"""Grammars for `SamplingParams(constraint=...)`: JSON schemas, regular expressions and Lark grammars.

    from tspec.constraints import json_schema
    params = SamplingParams(constraint=json_schema({"type": "object"}, llm.tokenizer))

Parsing is that of llguidance, an optional package (`pip install 'tspec[grammar]'`). A text that ends by a stop token
matches; one that is cut at max_tokens is the beginning of one that does.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from tokenizers import AddedToken, Tokenizer

from tspec.core.constraint import token_bits
from tspec.core.errors import ConfigError
from tspec.core.shapes import mask_words
from tspec.tokenizer import TextCodec

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_Answer = TypeVar("_Answer")
_log = logging.getLogger("tspec")

_END = "<|tspec: end of the text|>"
"""A token added for the parser, which wants one that ends texts; the model's own ends are set by each request."""

_SAMPLE = "a b"

_PLAINLY = {"NoExtensionBias": "a point from which no token leads to its end"}

_FOLLOWED = "one that llguidance can follow"


def json_schema(
    schema: Mapping[str, Any] | str, tokenizer: TextCodec, *, allows_space: bool = True
) -> "GrammarConstraint":
    """Texts that are JSON of this schema. Keys come in the order of the schema.

    allows_space   whether white space may stand between values and signs

    Errors   ConfigError for what is no schema, or has keys that llguidance does not know, for a tokenizer whose tokens
             it cannot read, and where it is not installed
    """
    matchers, text = _need_library().LLMatcher, _schema_text(schema)
    compiled = matchers.grammar_from_json_schema(text, overrides={"whitespace_flexible": allows_space})
    return GrammarConstraint("JSON schema", compiled, tokenizer)


def regex(pattern: str, tokenizer: TextCodec) -> "GrammarConstraint":
    """Texts that match all of a regular expression: Rust's syntax, with neither look-around nor back-references.

    Errors   ConfigError as for `json_schema`
    """
    compiled = _need_library().LLMatcher.grammar_from_regex(_need_text("regular expression", pattern))
    return GrammarConstraint("regular expression", compiled, tokenizer)


def grammar(text: str, tokenizer: TextCodec) -> "GrammarConstraint":
    """Texts of a context-free grammar in llguidance's dialect of Lark, from its rule `start`.

    Errors   ConfigError as for `json_schema`
    """
    compiled = _need_library().LLMatcher.grammar_from_lark(_need_text("grammar", text))
    return GrammarConstraint("grammar", compiled, tokenizer)


class GrammarConstraint:
    """A `LogitsConstraint` of a compiled grammar: any number of requests may share it.

    what         what to call it in errors
    compiled     the grammar as llguidance takes it
    limits       of the parser, llguidance's `LLParserLimits`; None for its own
    generation   how often the parser was made anew: copies of earlier ones are of no use
    """

    def __init__(self, what: str, compiled: str, tokenizer: TextCodec, limits: Any = None) -> None:
        self.what = what
        self.vocabulary = _vocabulary_of(tokenizer)
        self.generation = 0
        self._vocab_size = tokenizer.vocab_size
        self._compiled, self._limits = compiled, limits
        self._matcher = self._make_matcher()
        for warning in self._matcher.get_grammar_warnings():
            _log.warning("%s: %s", what, warning)
        first = self.read(())
        first.compute_bitmask()  # some grammars show only now that they are too large, or match nothing
        if first.is_error():
            raise _unusable(what, first.get_error(), _FOLLOWED)

    def start(self, vocab_size: int, stop_ids: Collection[int]) -> "GrammarState":
        """Return the state of an empty output. Errors: ConfigError for a model of another vocabulary."""
        if vocab_size != self._vocab_size:
            raise ConfigError(
                f"{self.what} for a model of {vocab_size} tokens",
                got=f"one made for {self._vocab_size} tokens",
                need="the tokenizer of the model that runs it",
                fix="Make it with llm.tokenizer.",
            )
        return GrammarState(self, vocab_size, stop_ids)

    def read(self, tokens: Iterable[int]) -> "LLMatcher":
        """Return a parser that has read `tokens`. Copies share what they learn, and one's failure is that of all."""
        matcher = self._matcher.deep_copy()
        for token in tokens:
            matcher.try_consume_tokens([token])
        return matcher

    def renew(self) -> None:
        """Make the parser anew, after a failure."""
        self._matcher = self._make_matcher()
        self.generation += 1

    def _make_matcher(self) -> "LLMatcher":
        matchers = _need_library().LLMatcher
        return matchers(self.vocabulary, self._compiled, log_level=0, limits=self._limits)


class GrammarState:
    """Where one text stands in a grammar. Stop tokens are no part of it: they may come where it is complete."""

    def __init__(self, constraint: GrammarConstraint, vocab_size: int, stop_ids: Collection[int]) -> None:
        self._constraint = constraint
        self._matcher, self._generation = constraint.read(()), constraint.generation
        self._tokens: list[int] = []
        self._num_stops = 0
        self._stop_ids = frozenset(stop_ids)
        self._stops = token_bits(vocab_size, stop_ids)
        ends = token_bits(vocab_size, (*stop_ids, constraint.vocabulary.eos_token))
        self._text = token_bits(vocab_size, None) & ~ends
        self._parsed = np.zeros(mask_words(constraint.vocabulary.vocab_size), dtype=np.int32)

    def fill_mask(self, mask: np.ndarray) -> None:
        """Write which tokens may come next. Errors: ConfigError where the grammar turns out to be too large."""
        if self._num_stops > 0:
            mask[:] = self._stops
            return
        address, size = self._parsed.ctypes.data, self._parsed.nbytes
        self._ask(lambda matcher: matcher.unsafe_compute_mask_ptr(address, size))
        np.bitwise_and(self._parsed[: len(mask)], self._text, out=mask)
        if self._matcher.is_accepting():
            mask |= self._stops

    def advance(self, token: int) -> bool:
        """Take a token. Once a stop token came, as where a request ignores it, only stop tokens may.

        Errors   ConfigError as for `fill_mask`
        """
        if token in self._stop_ids:
            is_taken = self._num_stops > 0 or self._ask(lambda matcher: matcher.is_accepting())
            self._num_stops += is_taken
        else:
            is_taken = self._num_stops == 0 and self._ask(
                lambda matcher: matcher.try_consume_tokens([token]) == 1
            )
            self._tokens += [token] * is_taken
        return is_taken

    def take_back(self, count: int) -> None:
        """Go back to before the last `count` tokens."""
        num_stops = min(count, self._num_stops)
        self._num_stops -= num_stops
        if count > num_stops:
            del self._tokens[num_stops - count :]
            if self._generation == self._constraint.generation:
                self._matcher.rollback(count - num_stops)

    def _ask(self, question: "Callable[[LLMatcher], _Answer]") -> _Answer:
        """Put a question to the parser, and again to a new one if it fails: it may only have learnt too much."""
        constraint = self._constraint
        for _ in range(2):
            if self._generation != constraint.generation:
                self._matcher, self._generation = constraint.read(self._tokens), constraint.generation
            answer = question(self._matcher)
            if not self._matcher.is_error():
                return answer
            message = self._matcher.get_error()
            constraint.renew()  # or it would fail for everyone, and for this text without its last token
        raise _unusable(constraint.what, message, _FOLLOWED)


_vocabularies: "WeakKeyDictionary[TextCodec, LLTokenizer]" = WeakKeyDictionary()
"""Each takes half a second to make for 49,152 tokens."""


def _vocabulary_of(codec: TextCodec) -> "LLTokenizer":
    """The bytes of each token, as the parser keeps them."""
    known = _vocabularies.get(codec)
    if known is not None:
        return known
    tokenizer = Tokenizer.from_str(codec.to_json())
    tokenizer.add_special_tokens([AddedToken(_END, special=True)])
    end = tokenizer.token_to_id(_END)
    assert end is not None, _END
    try:
        vocabulary: LLTokenizer = _need_library().LLTokenizer(
            tokenizer.to_str(), n_vocab=max(codec.vocab_size, end + 1), eos_token=end
        )
    except ValueError as error:
        raise _unusable("tokenizer for a grammar", str(error), "tokens that are bytes of text") from error
    # It takes some tokenizers that it misreads, such as spaces written in a way it does not know.
    ids = codec.encode_piece(_SAMPLE)
    heard, said = vocabulary.decode_str(ids).strip(), codec.decode(ids).strip()
    if heard != said:
        raise _unusable("tokenizer for a grammar", f"{heard!r} for {said!r}", "tokens that are bytes of text")
    _vocabularies[codec] = vocabulary
    return vocabulary


def _need_library() -> ModuleType:
    try:
        return import_module("llguidance")
    except ImportError as error:
        raise ConfigError(
            "constraint",
            got="no llguidance",
            need="the package that parses grammars",
            fix="Run `pip install 'tspec[grammar]'`.",
        ) from error


def _schema_text(schema: Mapping[str, Any] | str) -> str:
    """A schema as text that is known to be JSON."""
    need = "a JSON object"
    try:
        read = json.loads(schema) if isinstance(schema, str) else schema
        if isinstance(read, Mapping):
            return json.dumps(dict(read))
    except (TypeError, ValueError) as error:
        raise _unusable("JSON schema", str(error), need) from error
    raise _unusable("JSON schema", repr(schema), need)


def _need_text(what: str, text: str) -> str:
    if not isinstance(text, str):
        raise ConfigError(what, got=repr(text), need="a text", fix="Pass a str.")
    return text


def _unusable(what: str, message: str, need: str) -> ConfigError:
    """An error with what was said about it, less the marks that point into it and the parser's inner state."""
    said = " ".join(word for word in message.split("\n<")[0].split() if word.strip("^"))
    return ConfigError(what, got=_PLAINLY.get(said, said), need=need, fix="Correct it.")
