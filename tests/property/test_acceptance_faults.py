"""What the bound of test_acceptance_statistics.py can see: every planted fault exceeds it, in as many draws.

Run: pytest tests/property/test_acceptance_faults.py
"""

from dataclasses import replace

import numpy as np
import pytest
from support.acceptance_decoding import Decoder
from support.acceptance_drafts import Draft
from support.acceptance_faults import drawn_again, of_the_residual, of_the_target, ruled_out_by_nothing
from support.acceptance_noise import Noise, keyed_noise, noise_by_place, residual_noise
from support.acceptance_target import Target
from support.acceptance_worlds import CHAIN, LENGTH, SMALL_TREE, TREE, draft, surprise_of, target, texts_of
from support.text_law import ALARM, assert_law

PLAIN = {"temperature": 0.8}
PENALTIES = {"temperature": 0.8, "penalties": (1.3, 0.5, 0.4)}
FORMS = {
    "a chain": {"widths": CHAIN},
    "a block": {"widths": CHAIN, "is_block": True},
    "a tree": {"widths": TREE},
}


def decoder(asked: dict, kind: dict, spread: float = 1.0, **settings) -> Decoder:
    model = target(0, **asked)
    return Decoder(model, draft(0, model, spread, **kind), **settings)


@pytest.mark.parametrize("form", ["a chain", "a tree"])
def test_a_bonus_token_of_the_target_after_a_refusal_is_caught(form):
    assert surprise_of(decoder(PLAIN, FORMS[form], fault=of_the_target)) > ALARM


def test_a_refused_certain_candidate_that_may_come_again_is_caught():
    assert surprise_of(decoder(PLAIN, {"widths": SMALL_TREE, "certain": (1, 2)}, fault=drawn_again)) > ALARM


RESIDUALS = {
    "mask": ({"has_mask": True}, {"allowed": None}),
    "bias": ({"has_bias": True}, {"bias": None}),
    "top-k": ({"top_k": 3}, {"top_k": 0}),
    "top-p": ({"top_p": 0.8}, {"top_p": 1.0}),
    "min-p": ({"min_p": 0.1}, {"min_p": 0.0}),
    "temperature": ({"temperature": 0.5}, {"temperature": 1.0}),
}
"""What is asked of the target, and what the residual does not know of it."""


@pytest.mark.parametrize(
    ("unknown", "form"), [*((each, "a chain") for each in RESIDUALS), ("mask", "a tree"), ("top-k", "a tree")]
)
def test_a_residual_that_does_not_know_what_is_asked_of_the_target_is_caught(unknown, form):
    asked, left_out = RESIDUALS[unknown]
    broken = decoder(PLAIN | asked, FORMS[form])
    broken.fault = of_the_residual(replace(broken.target, **left_out), seed=1)
    assert surprise_of(broken) > ALARM


@pytest.mark.parametrize("form", ["a chain", "a tree"])
def test_a_residual_that_knows_it_is_not(form):
    """So it is not the planting that is caught."""
    right = decoder({"top_k": 4, "has_mask": True, "has_bias": True}, FORMS[form])
    right.fault = of_the_residual(right.target, seed=1)
    assert_law(texts_of(right), right.target.law(LENGTH))


@pytest.mark.parametrize("form", ["a chain", "a tree"])
def test_a_number_of_an_accept_test_that_may_be_zero_is_caught(form):
    """Of six bits instead of 32, so that it is 0 often enough; see tests/kernels/test_accept_ratio.py for all bits."""
    broken = decoder({"top_k": 2}, FORMS[form], fault=ruled_out_by_nothing(bits=6))
    assert surprise_of(broken) > ALARM


@pytest.mark.parametrize("form", FORMS)
def test_a_law_from_before_the_drafts_temperature_is_caught(form):
    kind = {"told_temperature": 1.0, "temperature": 0.7}
    assert surprise_of(decoder(PLAIN, FORMS[form] | kind)) > ALARM


@pytest.mark.parametrize(
    ("acceptance", "form"), [("match", "a chain"), ("match", "a tree"), *(("ratio", form) for form in FORMS)]
)
def test_penalties_that_count_only_what_is_committed_are_caught(acceptance, form):
    broken = decoder(PENALTIES, FORMS[form], acceptance=acceptance, is_path_counted=False)
    assert surprise_of(broken) > ALARM


@pytest.mark.parametrize("form", FORMS)
def test_noise_that_draft_and_residual_share_is_caught(form):
    """Of a draft that is far from the target, so that all siblings are refused at times."""
    assert surprise_of(decoder(PLAIN, FORMS[form] | {"noise": residual_noise}, spread=3.0)) > ALARM


@pytest.mark.parametrize("form", ["a chain", "a block"])
def test_a_doubtful_draw_that_is_dropped_without_a_word_is_caught(form):
    assert surprise_of(decoder(PLAIN, FORMS[form] | {"cut": 0.2, "is_cut_told": False})) > ALARM


def blocks_that_refuse_everything(noise: Noise) -> Decoder:
    """After token 1 the draft is right or wrong by chance, after token 2 it is the target.

    Where it says 1 the target mostly says 2, unless token 3 follows 1: so a refused block means that 4 was drawn.
    """
    rows = {0: {1: 0.5, 2: 0.5}, 1: {3: 1.0}, 2: {3: 0.5, 4: 0.5}, 3: {0: 1.0}, 4: {0: 1.0}}
    drawn = rows | {0: {1: 1.0}, 1: {3: 0.5, 4: 0.5}}
    with np.errstate(divide="ignore"):
        table, near = (
            np.log([[law[last].get(token, 0.0) for token in rows] for last in rows]) for law in (rows, drawn)
        )
    return Decoder(Target(table.astype(np.float32)), Draft(near.clip(-60), (1, 1), noise, is_block=True))


def test_blocks_need_new_noise_in_every_round():
    """A refused block tells of the candidates behind the refused one; the next round must not draw them again."""
    right = blocks_that_refuse_everything(keyed_noise)
    assert_law(texts_of(right), right.target.law(LENGTH))
    assert surprise_of(blocks_that_refuse_everything(noise_by_place)) > ALARM
