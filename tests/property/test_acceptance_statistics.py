"""The real kernels draw from the target's law: edits, filters, samples and acceptance on the CPU, in whole texts.

A draw is a token that was decided. Each case draws 201,000 of them: 67,000 texts of three, independent of each other,
whose joint law is known. The bound and the rate of false alarms are those of support/text_law.py, which allows 1e-6 to
all tests of laws together; test_acceptance_faults.py shows by planted faults what the bound can see.

Run: pytest tests/property/test_acceptance_statistics.py; with -m slow for more combinations
"""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from support.acceptance_decoding import Decoder
from support.acceptance_noise import keyed_noise
from support.acceptance_target import ROOT
from support.acceptance_worlds import (
    ALONE,
    CHAIN,
    LARGE,
    LENGTH,
    LIVE,
    MODES,
    SMALL_TREE,
    TOGETHER,
    draft,
    parameters,
    rich_target,
    target,
    texts_of,
)
from support.text_law import assert_law

EXAMPLES, MORE = 2, 5
"""Combinations a mode that hypothesis makes, besides that of all parameters: in every run, and in a slow test."""

RICH, POOR = 12.0, 4.0
"""How many equally likely texts would be as uncertain as those of a case, where its filters leave that many."""

LARGE_MODES = {
    "match, a tree": ("match", {"widths": SMALL_TREE}),
    "ratio, a tree": ("ratio", {"widths": SMALL_TREE}),
    "ratio, a block": ("ratio", {"widths": CHAIN, "is_block": True}),
    "ratio, a draft that knows few": ("ratio", {"widths": SMALL_TREE, "known": (66, 3, *LIVE[:2], 50)}),
}
"""As MODES, for the large vocabulary."""


def check(mode: tuple[str, dict], name: str, asked: Mapping[str, Any], least: float, spread: float = 1.0):
    """Hold the texts of one case to their law; `spread` is how far the draft is from the target."""
    acceptance, kind = mode
    number, model, law = rich_target(crc32(name.encode()), least, **asked)
    assert_law(texts_of(Decoder(model, draft(number, model, spread, **kind), acceptance)), law)


def check_combinations(mode: str, count: int, name: str) -> None:
    """So many combinations, the first with nothing on; others for each mode and name. A failure is not made smaller."""

    @seed(crc32(f"{mode}, {name}".encode()))
    @settings(deadline=None, max_examples=count, database=None, phases=[Phase.generate])
    @given(number=st.integers(0, 1 << 32), spread=st.sampled_from((0.5, 2.0)), asked=parameters)
    def texts_follow_their_law(number, spread, asked):
        check(MODES[mode], f"{mode}, {number}", asked, POOR, spread)

    texts_follow_their_law()


@pytest.mark.parametrize("mode", MODES)
def test_texts_follow_the_law_of_plain_decoding(mode):
    """All parameters together, and combinations of them; a draft that is near the target, and one that is not."""
    check(MODES[mode], mode, TOGETHER, RICH)
    check_combinations(mode, EXAMPLES, "every run")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_texts_follow_the_law_of_plain_decoding_with_more_combinations(mode):
    check_combinations(mode, MORE, "slow")


@pytest.mark.parametrize("alone", ALONE)
@pytest.mark.parametrize("mode", ["match, a tree", "ratio, a tree"])
def test_texts_follow_the_law_with_each_parameter_alone(mode, alone):
    check(MODES[mode], alone, ALONE[alone], POOR)


@pytest.mark.parametrize("mode", LARGE_MODES)
def test_texts_follow_the_law_where_the_vocabulary_is_larger_than_a_block(mode):
    """All parameters together; most tokens never come, but are proposed."""
    check(LARGE_MODES[mode], mode, {"vocab": LARGE, **TOGETHER}, RICH)


@pytest.mark.parametrize(
    "kind", [{"widths": (3, 2)}, {"widths": CHAIN, "is_block": True, "noise": keyed_noise}]
)
def test_a_draft_that_is_the_target_does_not_turn_it_greedy(kind):
    model = target(3)
    assert_law(texts_of(Decoder(model, draft(3, model, spread=0.0, **kind))), model.law(LENGTH))


@pytest.mark.parametrize("acceptance", ["match", "ratio"])
def test_a_greedy_request_follows_its_likeliest_tokens_whatever_is_drawn(acceptance):
    model = target(5, temperature=0.0)
    texts = Decoder(model, draft(5, model, widths=(3, 2)), acceptance).decode(1000, LENGTH, seed=7)
    best, last = [], ROOT
    for _ in range(LENGTH):
        last = int(model.logits[last].argmax())
        best.append(last)
    assert np.array_equal(texts, np.tile(best, (1000, 1)))
