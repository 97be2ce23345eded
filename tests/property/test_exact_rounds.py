"""Round after round, with noise that the next round meets again, and with drafts that use the target's own: all exact.

Enumerated as tests/property/test_exact_acceptance.py does, but whole texts are made by rounds alone, and a choice knows
all that earlier ones have told of its noise.

Run: pytest tests/property/test_exact_rounds.py
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance import match, plain_law
from support.acceptance_laws import drawn_laws, random_laws
from support.keyed_noise import VOCAB, Keys
from support.keyed_rounds import Rounds

from tspec.core.noise import ACCEPT, RESIDUAL, TARGET, draft_stream

LENGTH = 3
EXACT = 1e-9

COUPLED = Keys(draft=lambda root, depth: (root + depth, TARGET))
BY_PLACE = Keys(draft=lambda root, depth: (root + depth, draft_stream(0)))

WAYS = {
    "match, a coupled chain": {"widths": (1, 1), "keys": COUPLED, "decide_by": match},
    "match, a coupled tree": {"widths": (2, 1), "keys": COUPLED, "decide_by": match},
    "match, a coupled chain cut where it is doubtful": {
        "widths": (1, 1), "keys": COUPLED, "decide_by": match, "cut": 0.4, "is_cut_told": False,
    },
    "match, a draft of its own noise": {"widths": (1, 1), "decide_by": match},
    "ratio, a chain": {"widths": (1, 1)},
    "ratio, a tree": {"widths": (2, 1)},
    "ratio, a block": {"widths": (1, 1), "is_block": True},
    "ratio, a chain cut where it is doubtful": {"widths": (1, 1), "cut": 0.4},
    "ratio, a block cut where it is doubtful": {"widths": (1, 1), "cut": 0.4, "is_block": True},
}  # fmt: skip

FAULTS = {
    "a block has noise by place": {"keys": BY_PLACE, "is_block": True},
    "a block is coupled": {"keys": COUPLED, "is_block": True},
    "accept tests of a block are numbered by place": {
        "keys": Keys(accept=lambda root, depth, node: (root + depth, ACCEPT)), "is_block": True,
    },
    "draft and residual share their noise": {"keys": Keys(draft=lambda root, depth: (root + depth, RESIDUAL))},
    "a doubtful draw is dropped without a word": {"cut": 0.4, "is_cut_told": False},
}  # fmt: skip
"""Chains of two, verified by ratio."""


def error(rounds: Rounds) -> float:
    """How far the law of the texts is from the target's, at its worst place."""
    return float(np.abs(rounds.law(LENGTH) - plain_law(rounds.laws, LENGTH)).max())


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=4)
@given(data=st.data())
def test_texts_of_many_rounds_follow_the_law_of_the_target(way, data):
    known = data.draw(st.sampled_from((None, 2)), label="draft_vocab")
    assert error(Rounds(drawn_laws(data, VOCAB, known), **WAYS[way])) <= EXACT


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_noise_or_the_draft_is_caught(fault):
    assert error(Rounds(random_laws(4, VOCAB), (1, 1), **FAULTS[fault])) > 1e5 * EXACT
