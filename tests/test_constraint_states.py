"""Where a text stands in a grammar: what may come, stop tokens, ways back, and parsers that give up.

Run: pytest tests/test_constraint_states.py
"""

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.merging_tokenizer import EOS, PATTERNS, SCHEMA, VOCAB, allowed_by, merging_tokenizer

from tspec.constraints import GrammarConstraint, json_schema, regex
from tspec.core.errors import ConfigError
from tspec.tokenizer import load_codec


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merges")
    merging_tokenizer(folder)
    return load_codec(folder, VOCAB)


def test_stop_tokens_come_where_the_text_is_complete_and_nowhere_else(codec):
    a, b, dot = (codec.encode(char)[0] for char in "ab.")
    state = regex(r"a\.b*", codec).start(VOCAB, {EOS, dot, b})
    assert allowed_by(state) == [a]
    assert not state.advance(EOS)
    assert state.advance(a)
    assert (
        allowed_by(state) == []
    )  # its only way on is the dot, which would end the text before it is complete
    assert not state.advance(dot)
    state = regex(r"a\.?", codec).start(VOCAB, {EOS, dot})
    assert state.advance(a)
    assert allowed_by(state) == sorted([EOS, dot])


@pytest.mark.parametrize("pattern", ["ab", "abb*"])
def test_after_its_end_a_text_has_only_stop_tokens(codec, pattern):
    """Such as where a request ignores them; whether the pattern could go on or not."""
    state = regex(pattern, codec).start(VOCAB, [EOS, 449])
    a, b = (codec.encode(char)[0] for char in "ab")
    assert state.advance(a) and state.advance(b)
    before = allowed_by(state)
    assert {EOS, 449} <= {*before}
    assert state.advance(EOS)
    assert allowed_by(state) == [EOS, 449]
    assert state.advance(449) and not state.advance(b)
    state.take_back(2)
    assert allowed_by(state) == before
    state.take_back(1)
    assert state.advance(b)
    assert allowed_by(state) == before


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([*PATTERNS, None]), st.data())
def test_a_state_that_went_back_is_one_that_never_went_on(codec, pattern, data):
    constraint = regex(pattern, codec) if pattern else json_schema(SCHEMA, codec)
    state, text = constraint.start(VOCAB, {EOS}), []
    for _ in range(data.draw(st.integers(1, 25))):
        count = data.draw(st.integers(0, len(text))) if data.draw(st.booleans()) else 0
        state.take_back(count)
        text = text[: len(text) - count]
        allowed = allowed_by(state)
        fresh = constraint.start(VOCAB, {EOS})
        assert all(fresh.advance(token) for token in text)
        assert allowed == allowed_by(fresh)
        token = data.draw(st.one_of(st.sampled_from(allowed), st.integers(0, VOCAB - 1)))
        assert state.advance(token) == (token in allowed)
        text += [token] * (token in allowed)


def limited(codec, compiled, **limits):
    """A constraint whose parser gives up early, as that of a larger grammar would."""
    return GrammarConstraint("grammar", compiled, codec, llguidance.LLParserLimits(**limits))


def test_a_parser_that_fails_on_one_text_fails_on_no_other(codec):
    """Parsers share what they learn, and their failures; a state shares none, and outlives the candidate."""
    compiled = llguidance.LLMatcher.grammar_from_regex("a*~[^d]{3,9}e")
    constraint = limited(codec, compiled, step_lexer_fuel=10)
    a, tilde = (codec.encode(char)[0] for char in "a~")
    state, other, late = (constraint.start(VOCAB, {EOS}) for _ in range(3))
    start = allowed_by(late)
    assert state.advance(a) and other.advance(a)
    allowed = allowed_by(state)
    assert state.advance(a) and state.advance(tilde)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"grammar: got lexer error: too many .*, need one that llguidance"
        ):
            allowed_by(state)
    assert other.advance(a)
    assert allowed_by(other) == allowed
    assert allowed_by(late) == allowed_by(constraint.start(VOCAB, {EOS})) == start
    state.take_back(2)
    assert allowed_by(state) == allowed
    assert state.advance(a)


def test_a_parser_that_fails_at_a_token_is_where_it_was(codec):
    text = 'start: /a+/ x\nx: "[" x* "]" | "y"'
    constraint = limited(codec, llguidance.LLMatcher.grammar_from_lark(text), max_items_in_row=3)
    state = constraint.start(VOCAB, {EOS})
    a, bracket = (codec.encode(char)[0] for char in "a[")
    assert state.advance(a) and state.advance(a)
    allowed = allowed_by(state)
    assert bracket in allowed
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"Current row has .* items"):
            state.advance(bracket)
        assert allowed_by(state) == allowed
    state.take_back(1)
    assert allowed_by(state) == allowed


def test_a_parser_that_has_learnt_too_much_starts_anew(codec):
    """As that of a constraint that served many requests: each text alone is small enough."""
    patterns = [f"{letter}[0-9]{{0,6}}{letter.upper()}" for letter in "abcdefghij"]
    compiled = llguidance.LLMatcher.grammar_from_regex("|".join(patterns))
    constraint = limited(codec, compiled, max_lexer_states=50)
    for pattern in patterns:
        state = constraint.start(VOCAB, {EOS})
        for char in f"{pattern[0]}123456{pattern[-1]}":
            token = codec.encode(char)[0]
            assert token in allowed_by(state)
            assert state.advance(token)
        assert allowed_by(state) == [EOS]
    assert constraint.generation > 0
