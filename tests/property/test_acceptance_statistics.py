"""The real kernels draw from the target's law: edits, filters, samples and acceptance on the CPU, in whole texts.

Each case draws 210,000 tokens: 70,000 texts of three, whose joint law is known. A text's frequency is held against its
probability by Chernoff's bound, P(n * KL(found, p) >= x) <= 2 * exp(-x), which is exact, over all texts of all cases:
all tests of this file together raise a false alarm with probability 1e-6 at most, over the choice of their seeds.
The same bound has to catch every planted fault.

Run: pytest tests/property/test_acceptance_statistics.py
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance_decoding import ROOT, Decoder, Target
from support.acceptance_drafts import (
    Draft,
    coupled_noise,
    fresh_noise,
    keyed_noise,
    no_noise,
    noise_by_place,
    residual_noise,
)
from support.text_law import alarm, surprise

VOCAB, LENGTH, TEXTS = 5, 3, 70_000
FALSE_ALARM = 1e-6
EXAMPLES = 3

TREE, CHAIN = (2, 2), (1, 1, 1)
MODES = {
    "match, a tree": ("match", {"widths": TREE}),
    "match, a draft of the target's own noise": ("match", {"widths": CHAIN, "noise": coupled_noise}),
    "match, the draft's likeliest tokens": ("match", {"widths": (3, 1), "noise": no_noise}),
    "ratio, a chain": ("ratio", {"widths": CHAIN, "noise": keyed_noise}),
    "ratio, a block": ("ratio", {"widths": CHAIN, "noise": keyed_noise, "is_block": True}),
    "ratio, a tree": ("ratio", {"widths": TREE}),
    "ratio, siblings alone": ("ratio", {"widths": (4,)}),
    "ratio, a tree of certain candidates": ("ratio", {"widths": TREE, "is_certain": True}),
    "ratio, a chain cut where it is doubtful": ("ratio", {"widths": CHAIN, "cut": 0.2}),
    "ratio, a block cut where it is doubtful": ("ratio", {"widths": CHAIN, "cut": 0.2, "is_block": True}),
}
"""Acceptance, and what the draft is like."""

FAULTS = {
    "the residual is p": ({"is_residual_used": False}, {"widths": CHAIN}),
    "the residual of a tree is p": ({"is_residual_used": False}, {"widths": TREE}),
    "q is from before the draft's temperature": (
        {},
        {"widths": CHAIN, "told_temperature": 1.0, "temperature": 0.7},
    ),
    "penalties count only what is committed": ({"is_path_counted": False}, {"widths": CHAIN}),
    "penalties of a tree count only what is committed": ({"is_path_counted": False}, {"widths": TREE}),
    "draft and residual share their noise": ({}, {"widths": CHAIN, "noise": residual_noise}),
    "a doubtful draw is dropped without a word": ({}, {"widths": CHAIN, "cut": 0.2, "is_cut_told": False}),
}
"""What of the decoder is broken, and of the draft."""

NUM_CASES = EXAMPLES * len(MODES) + 4
ALARM = alarm(NUM_CASES * VOCAB**LENGTH, FALSE_ALARM)


def surprise_of(decoder: Decoder) -> float:
    """How far its texts are from the law of its target."""
    return surprise(decoder.decode(TEXTS, LENGTH, seed=1), decoder.target.law(LENGTH))


def tables(seed: int, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a target, and of a draft that is near it."""
    generator = np.random.default_rng(seed)
    target = 1.5 * generator.normal(size=(VOCAB, VOCAB))
    draft = target + spread * generator.normal(size=(VOCAB, VOCAB))
    return target.astype(np.float32), draft.astype(np.float32)


@st.composite
def targets(draw: st.DrawFn, logits: np.ndarray) -> Target:
    """Every parameter, each off in some cases."""
    generator = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    allowed = generator.random((VOCAB, VOCAB)) < 0.7
    allowed[:, ROOT] = True
    return Target(
        logits,
        temperature=draw(st.sampled_from((0.4, 0.7, 1.0, 1.7))),
        top_k=draw(st.sampled_from((0, 2, 3, 4))),
        top_p=draw(st.sampled_from((1.0, 0.6, 0.8, 0.95))),
        min_p=draw(st.sampled_from((0.0, 0.02, 0.1, 0.3))),
        penalties=draw(st.sampled_from(((1, 0, 0), (1.3, 0, 0), (1, 0.6, 0), (1, 0, 0.5), (0.8, -0.4, 0.7)))),
        bias=draw(st.sampled_from((None, generator.normal(size=VOCAB)))),
        allowed=draw(st.sampled_from((None, allowed))),
    )


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, max_examples=EXAMPLES, derandomize=True, database=None)
@given(data=st.data())
def test_texts_follow_the_law_of_plain_decoding(mode, data):
    """A draft that is near the target, and one that is not."""
    acceptance, draft = MODES[mode]
    table, near = tables(data.draw(st.integers(0, 1 << 32)), data.draw(st.sampled_from((0.5, 2.0))))
    target = data.draw(targets(table))
    decoder = Decoder(target, Draft(near, **{"noise": fresh_noise(2)} | draft), acceptance)
    assert surprise_of(decoder) < ALARM


@pytest.mark.parametrize("settings", [{"widths": (3, 2)}, {"widths": CHAIN, "is_block": True}])
def test_a_draft_that_is_the_target_does_not_turn_it_greedy(settings):
    table, _ = tables(3)
    assert surprise_of(Decoder(Target(table), Draft(table, noise=fresh_noise(4), **settings))) < ALARM


@pytest.mark.parametrize("acceptance", ["match", "ratio"])
def test_a_greedy_request_follows_its_likeliest_tokens_whatever_is_drawn(acceptance):
    table, near = tables(5)
    draft = Draft(near, (3, 2), fresh_noise(6))
    texts = Decoder(Target(table, temperature=0.0), draft, acceptance).decode(1000, LENGTH, seed=7)
    best, last = [], ROOT
    for _ in range(LENGTH):
        last = int(table[last].argmax())
        best.append(last)
    assert np.array_equal(texts, np.tile(best, (1000, 1)))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault):
    broken, draft = FAULTS[fault]
    table, near = tables(0)
    target = Target(table, temperature=0.8, penalties=(1.3, 0.5, 0.4))
    decoder = Decoder(target, Draft(near, **{"noise": fresh_noise(8)} | draft), **broken)
    assert surprise_of(decoder) > ALARM


def blocks_that_refuse_everything(noise) -> Decoder:
    """After token 1 the draft is right or wrong by chance, after token 2 it is the target.

    Where it says 1 the target mostly says 2, unless token 3 follows 1: so a refused block means that 4 was drawn.
    """
    rows = {0: {1: 0.5, 2: 0.5}, 1: {3: 1.0}, 2: {3: 0.5, 4: 0.5}, 3: {0: 1.0}, 4: {0: 1.0}}
    drawn = rows | {0: {1: 1.0}, 1: {3: 0.5, 4: 0.5}}
    with np.errstate(divide="ignore"):
        table, near = (
            np.log([[law[last].get(token, 0.0) for token in range(VOCAB)] for last in range(VOCAB)])
            for law in (rows, drawn)
        )
    return Decoder(Target(table.astype(np.float32)), Draft(near.clip(-60), (1, 1), noise, is_block=True))


def test_blocks_need_new_noise_in_every_round():
    """A refused block tells of the candidates behind the refused one; the next round must not draw them again."""
    assert surprise_of(blocks_that_refuse_everything(keyed_noise)) < ALARM
    assert surprise_of(blocks_that_refuse_everything(noise_by_place)) > ALARM
