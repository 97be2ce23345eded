"""Texts under a regular expression or a JSON schema: they match when they end, also through candidate trees.

The model is random: its logits depend on the whole text and nothing else.
Run: pytest tests/test_constraints.py
"""

import json
import re
import sys
import zlib

import llguidance
import numpy as np
import pytest
from support.merging_tokenizer import EOS, PATTERNS, SCHEMA, VOCAB, merging_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tspec import LLM
from tspec.constraints import grammar, json_schema, regex
from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.core.shapes import mask_words
from tspec.core.tree import NO_PARENT
from tspec.runtime.masks import TokenMasks
from tspec.tokenizer import load_codec


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merges")
    merging_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def codec(folder):
    return load_codec(folder, VOCAB)


def logits_after(seed, text):
    """Random, but what `text` decides; ends are likely, so that texts do."""
    random = np.random.default_rng([seed, zlib.crc32(np.array(text, np.int64).tobytes())])
    logits = random.normal(size=VOCAB)
    logits[EOS] += 2
    return logits


def choose(row, seed, text):
    allowed = np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCAB] > 0
    assert allowed.any()
    return int(np.where(allowed, logits_after(seed, text), -np.inf).argmax())


def random_tree(random, future):
    """Edges below a root; the tokens that plain decoding says next hang at some places of it."""
    edges, right = [], 0
    for _ in range(int(random.integers(0, 12))):
        edge = int(random.integers(0, len(edges) + 1)), int(random.integers(0, VOCAB))
        if future and random.random() < 0.6:
            edge = right, future.pop(0)
            right = edges.index(edge) + 1 if edge in edges else len(edges) + 1
        if edge not in edges:
            edges.append(edge)
    return edges


class Decoding:
    """One request on its way through rounds of random trees; `known` is what plain decoding said, if there was some."""

    def __init__(self, constraint, seed, *, known=(), **params):
        self.masks = TokenMasks(SamplingParams(constraint=constraint, **params), [EOS], VOCAB)
        self.seed, self.known = seed, list(known)
        self.random = np.random.default_rng(seed)
        self.output, self.num_accepted = [], 0

    @property
    def is_done(self):
        return len(self.output) >= 60 or bool(self.output and self.output[-1] == EOS)

    def round(self):
        """Verify a tree and commit the accepted path and the bonus token."""
        text, future = [EOS, *self.output], self.known[len(self.output) :]
        edges = random_tree(self.random, future) if self.known else []
        nodes = np.array([text[-1], *(token for _, token in edges)], dtype=np.int32)
        parents = np.array([NO_PARENT, *(parent for parent, _ in edges)], dtype=np.int32)
        rows = np.empty((len(nodes), mask_words(VOCAB)), dtype=np.int32)
        self.masks.fill(rows, text, len(self.output), nodes, parents, len(nodes))
        node, emitted = 0, []
        while node is not None and not (emitted and emitted[-1] == EOS):
            emitted.append(choose(rows[node], self.seed, [*text, *emitted]))
            edge = (node, emitted[-1])
            node = edges.index(edge) + 1 if edge in edges else None
        self.num_accepted += len(emitted) - 1
        self.masks.commit(emitted)
        self.output += emitted

    def finish(self):
        while not self.is_done:
            self.round()
        return self.output[:60]


def has_ended(output):
    return output[-1] == EOS


def is_of_schema(text):
    said = json.loads(text)
    return (
        list(said) == ["name", "age", "tags", "is_new"]
        and isinstance(said["name"], str)
        and len(said["name"]) <= 5
        and type(said["age"]) is int
        and 0 <= said["age"] <= 120
        and len(said["tags"]) <= 3
        and set(said["tags"]) <= {"red", "green", "blue"}
        and said["is_new"] in (True, False, None)
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_that_ends_matches_its_pattern(codec, pattern):
    constraint = regex(pattern, codec)
    outputs = [Decoding(constraint, seed).finish() for seed in range(30)]
    texts = {codec.decode(output[:-1]) for output in outputs if has_ended(output)}
    assert len(texts) > 2
    assert [text for text in texts if not re.fullmatch(pattern, text)] == []


def test_a_text_that_ends_is_json_of_its_schema(codec):
    constraint = json_schema(SCHEMA, codec, allows_space=False)
    outputs = [Decoding(constraint, seed).finish() for seed in range(40)]
    texts = {codec.decode(output[:-1]) for output in outputs if has_ended(output)}
    assert len(texts) > 10
    assert [text for text in texts if not is_of_schema(text)] == []


def test_space_is_allowed_unless_refused(codec):
    text = codec.encode('{"a": 1}')
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    for allows_space in (True, False):
        state = json_schema(schema, codec, allows_space=allows_space).start(VOCAB, {EOS})
        assert all(state.advance(token) for token in text) is allows_space


def test_a_text_that_ends_is_of_its_grammar(codec):
    constraint = grammar('start: "(" start ")" | "ab"', codec)
    texts = {codec.decode(Decoding(constraint, seed, known=[EOS]).finish()[:-1]) for seed in range(20)}
    assert {"ab", "(ab)"} <= texts
    assert {text.replace("(", "").replace(")", "") for text in texts} == {"ab"}
    assert all(text.count("(") == text.count(")") for text in texts if text.endswith(")"))


@pytest.mark.parametrize("pattern", [*PATTERNS, None])
def test_candidates_change_no_text(codec, pattern):
    """Trees that hold tokens of the text, tokens outside the grammar, and some below those."""
    constraint = regex(pattern, codec) if pattern else json_schema(SCHEMA, codec)
    num_accepted = 0
    for seed in range(15):
        plain = Decoding(constraint, seed, bad_words=[[100]]).finish()
        guessed = Decoding(constraint, seed, bad_words=[[100]], known=plain)
        assert guessed.finish() == plain
        num_accepted += guessed.num_accepted
    assert num_accepted > 15


def test_requests_that_share_a_constraint_do_not_disturb_each_other(codec):
    constraint = json_schema(SCHEMA, codec)
    alone = [Decoding(constraint, seed).finish() for seed in range(3)]
    together = [Decoding(constraint, seed, known=output) for seed, output in enumerate(alone)]
    while not all(each.is_done for each in together):
        for each in together:
            if not each.is_done:
                each.round()
    assert [each.output[:60] for each in together] == alone


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_model_says_what_its_constraint_allows_with_and_without_candidates(tiny_folder, temperature):
    """The whole engine; and a request whose parameters leave no token ends alone."""
    pattern, prompts = r"[a-z]{3}(-[0-9]{2,4}){1,2}(ab)+", ["abab-12-12ab", "x"]
    texts = []
    for speculative in (None, {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 5}):
        with LLM(tiny_folder, speculative_config=speculative, num_threads=1, kv_cache_mib=64) as llm:
            constraint = regex(pattern, llm.tokenizer)
            asked = SamplingParams(temperature=temperature, seed=5, constraint=constraint, n=3, max_tokens=60)
            results = llm.generate(prompts, asked)
            texts.append([each.text for each in results])
            ended = [each.text for each in results if each.finish_reason == "stop"]
            assert ended and [text for text in ended if not re.fullmatch(pattern, text)] == []
            stuck = SamplingParams(constraint=constraint, allowed_token_ids=[*b"abc"])
            (result,) = llm.generate("x", stuck)
            assert (len(result.text), result.finish_reason) == (3, "error")
            assert "after 3 tokens allowed_token_ids and the constraint leave none" in result.error
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("make", "text", "message"),
    [
        (regex, "a(", 'regular expression: got .*invalid regex "a\\(".* unclosed group'),
        (regex, "(?=a)b", "look-around, including .* is not supported"),
        (regex, r"a[^\s\S]", "a point from which no token leads to its end"),
        (regex, 3, "regular expression: got 3, need a text"),
        (grammar, "start: foo", 'grammar: got .*unknown name: "foo"'),
        (grammar, 'rule: "a"', "no start rule found"),
        (json_schema, {"type": "foo"}, "JSON schema: got Invalid type: foo"),
        (json_schema, {"unevaluatedProperties": {}}, "Unimplemented keys"),
        (json_schema, '{"enum": []}', "Unsatisfiable schema"),
        (json_schema, "{", "JSON schema: got Expecting property name.*need a JSON object"),
        (json_schema, "[1]", r"JSON schema: got '\[1\]', need a JSON object"),
        (json_schema, {"const": {3}}, "not JSON serializable"),
        (json_schema, None, "JSON schema: got None, need a JSON object"),
    ],
)
def test_what_is_no_grammar_is_refused_with_the_reason(codec, make, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make(text, codec)
    assert "\n" not in str(caught.value) and "<state>" not in str(caught.value)


def test_another_vocabulary_is_refused(codec):
    with pytest.raises(ConfigError, match="for a model of 451 tokens: got one made for 450"):
        TokenMasks(SamplingParams(constraint=regex("a", codec)), [EOS], VOCAB + 1)


def test_a_missing_package_is_named(codec, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for make in (json_schema, regex, grammar):
        with pytest.raises(ConfigError, match=r"no llguidance, need .*pip install 'tspec\[grammar\]'"):
            make("{}", codec)


@pytest.mark.parametrize(
    ("model", "decoder", "said"),
    [
        (models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"), None, "can't determine decoder type"),
        (
            models.BPE({"▁": 0, "a": 1, "b": 2}, [], byte_fallback=True),
            decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
            "'▁a▁b' for 'a b'",
        ),
    ],
)
def test_a_tokenizer_that_the_parser_cannot_read_is_refused(tmp_path, model, decoder, said):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=f"tokenizer for a grammar: got {said}"):
        regex("a", load_codec(tmp_path, 9))


def test_the_vocabulary_is_read_once_for_a_tokenizer(folder, monkeypatch):
    made = []
    make = llguidance.LLTokenizer
    monkeypatch.setattr(
        llguidance, "LLTokenizer", lambda *args, **named: made.append(1) or make(*args, **named)
    )
    codec = load_codec(folder, VOCAB)
    regex("a", codec), json_schema({}, codec), regex("b", codec)
    assert len(made) == 1
    regex("a", load_codec(folder, VOCAB))
    assert len(made) == 2
