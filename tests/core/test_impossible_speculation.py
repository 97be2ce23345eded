"""Impossible speculation is refused when it is asked for, by name and with its range.

Run: pytest tests/core/test_impossible_speculation.py
"""

from pathlib import Path

import pytest

from tspec.core.errors import ConfigError
from tspec.core.speculative_config import MODEL_METHODS, SpeculativeConfig

DRAFT = {"method": "draft_model", "model": "somewhere"}
EAGLE = {"method": "eagle3", "model": Path("somewhere")}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "magic"},
            "speculative method: got 'magic', need one of auto, ngram, suffix, draft_model, eagle, eagle3,",
        ),
        ({"method": None}, "speculative method: got None, need one of"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens: got 0, need an integer from 1 to 63"),
        ({"num_speculative_tokens": 64}, "num_speculative_tokens: got 64, need an integer from 1 to 63"),
        ({"num_speculative_tokens": 2.0}, "num_speculative_tokens: got 2.0, need an integer from 1 to 63"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens: got True, need an integer from 1 to 63"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min: got 0, need an integer of at least 1"),
        ({"prompt_lookup_max": 17}, "prompt_lookup_max: got 17, need an integer from 1 to 16"),
        (
            {"prompt_lookup_min": 4, "prompt_lookup_max": 3},
            "prompt_lookup_min: got 4, need at most prompt_lookup_max (3)",
        ),
        ({"occurrence": "first"}, "occurrence: got 'first', need one of latest, earliest"),
        ({"acceptance": "typical"}, "acceptance: got 'typical', need one of auto, match, ratio"),
        (DRAFT | {"draft_depth": 0}, "draft_depth: got 0, need an integer from 1 to 63"),
        (DRAFT | {"draft_depth": 64}, "draft_depth: got 64, need an integer from 1 to 63"),
        (DRAFT | {"draft_top_k": 0}, "draft_top_k: got 0, need an integer from 1 to 16"),
        (DRAFT | {"draft_top_k": 17}, "draft_top_k: got 17, need an integer from 1 to 16"),
        (DRAFT | {"draft_top_k": "3"}, "draft_top_k: got '3', need an integer from 1 to 16"),
        (
            DRAFT | {"draft_sample_method": "random"},
            "draft_sample_method: got 'random', need one of greedy, probabilistic",
        ),
        (EAGLE | {"aux_layer_offset": 2}, "aux_layer_offset: got 2, need an integer from -1 to 1"),
        (
            DRAFT | {"draft_sample_method": "probabilistic", "draft_top_k": 2},
            "draft_sample_method: got probabilistic with method draft_model and draft_top_k 2, need a chain",
        ),
        (
            {"method": "medusa", "model": "heads", "draft_sample_method": "probabilistic"},
            "draft_sample_method: got probabilistic with method medusa",
        ),
        *(
            (
                {"method": method},
                f"speculative model: got None, need a folder for method {method}. Set model.",
            )
            for method in MODEL_METHODS
        ),
        (
            {"method": "ngram", "model": "a/b"},
            "speculative model: got 'a/b', need none for method ngram. Set method to one of auto, union, draft_model",
        ),
        (
            {"method": "ngram", "suffix_corpus": "a.jsonl"},
            "suffix_corpus: got a file with method ngram, need method suffix, or one of auto, union",
        ),
        ({"method": "none", "model": "a/b"}, "speculative model: got 'a/b', need none for method none"),
        ({"num_candidates": 3}, "speculative_config key: got 'num_candidates', need one of method, model"),
    ],
    ids=str,
)
def test_an_impossible_value_is_named_with_its_range(options, message):
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig.of(options)
    assert message in str(caught.value)


def test_nothing_asked_for_is_what_pays():
    assert SpeculativeConfig.of(None) == SpeculativeConfig.of({}) == SpeculativeConfig(method="auto")


@pytest.mark.parametrize(
    "options", [{}, DRAFT, EAGLE, DRAFT | {"draft_sample_method": "probabilistic"}], ids=str
)
def test_what_is_possible_is_kept_as_it_is(options):
    config = SpeculativeConfig.of(options)
    assert SpeculativeConfig.of(config) is config
    assert {name: getattr(config, name) for name in options} == options


@pytest.mark.parametrize(
    "limits",
    [
        {"num_speculative_tokens": 1, "draft_depth": 1, "draft_top_k": 1},
        {"num_speculative_tokens": 63, "draft_depth": 63, "draft_top_k": 16, "aux_layer_offset": -1},
    ],
    ids=str,
)
def test_the_ends_of_the_ranges_are_in_them(limits):
    config = SpeculativeConfig.of(EAGLE | limits)
    assert {name: getattr(config, name) for name in limits} == limits
