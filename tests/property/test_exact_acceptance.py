"""Acceptance keeps the target's law exactly: all proposals and all verdicts are enumerated, none is sampled.

The decisions are the reference's own, on the operands of the op; the law is the joint one of three tokens, in which p
and q depend on all tokens before. What is known to be wrong is shown to be caught. Noise that several rounds, or draft
and target, share is enumerated in tests/property/test_exact_rounds.py.

Run: pytest tests/property/test_exact_acceptance.py
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance import Decide, Propose, match, output_law, plain_law
from support.acceptance_laws import drawn_laws, random_laws
from support.acceptance_proposers import (
    as_block,
    as_block_if_chain,
    best_of_several,
    certain_tree,
    cut_at_a_doubtful_candidate,
    drawn_chain,
    drawn_tree,
    drawn_with_replacement,
    mixed_tree,
    stopped_after_a_doubtful_candidate,
)

from tspec.kernels.reference.accept_ratio import decide

LENGTH = 3
"""Tokens of which the joint law is taken: those of one round, and what the target itself says behind them."""

EXACT = 1e-9

STOPPED = stopped_after_a_doubtful_candidate(3)
CUT = cut_at_a_doubtful_candidate(3, is_declared=True)
PROPOSERS: dict[str, tuple[int, Propose]] = {
    "chain of 1": (5, drawn_chain(1)),
    "chain of 2": (5, drawn_chain(2)),
    "chain of 3": (4, drawn_chain(3)),
    "block of 1": (5, as_block(drawn_chain(1))),
    "block of 2": (5, as_block(drawn_chain(2))),
    "block of 3": (4, as_block(drawn_chain(3))),
    "2 siblings of 2": (3, drawn_tree([2, 2])),
    "3 siblings of 1": (3, drawn_tree([3, 1])),
    "1 child, then 2": (4, drawn_tree([1, 2])),
    "every token a sibling": (5, drawn_tree([5])),
    "3 draws with replacement": (4, drawn_with_replacement(3, 1)),
    "2 draws with replacement, twice": (3, drawn_with_replacement(2, 2)),
    "certain tree": (5, certain_tree(1, 6)),
    "certain chain": (4, mixed_tree("cc", 2)),
    "drawn, then certain": (4, mixed_tree("dC", 3)),
    "certain, then siblings drawn": (4, mixed_tree("cD", 4)),
    "drawn, certain, drawn": (3, mixed_tree("Dcd", 5)),
    "stopped after a doubtful candidate": (4, STOPPED),
    "stopped block": (4, as_block(STOPPED)),
    "cut at a doubtful candidate": (4, CUT),
    "cut block": (4, as_block(CUT)),
}
"""Largest vocabulary to enumerate, and the proposer."""


def error(laws, propose: Propose, decide_by: Decide = decide) -> float:
    """How far the law of what comes out is from the target's, at its worst place."""
    return float(np.abs(output_law(laws, propose, LENGTH, decide_by) - plain_law(laws, LENGTH)).max())


@pytest.mark.parametrize("name", PROPOSERS)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_ratio_keeps_the_law_of_the_target(name, data):
    most, propose = PROPOSERS[name]
    vocab = data.draw(st.integers(3, most), label="vocab")
    assert error(drawn_laws(data, vocab, None), propose) <= EXACT


@pytest.mark.parametrize("decide_by", [decide, match], ids=["ratio", "match"])
@pytest.mark.parametrize("name", PROPOSERS)
@settings(deadline=None, max_examples=5)
@given(data=st.data())
def test_a_draft_may_know_fewer_tokens_than_the_target(name, decide_by, data):
    most, propose = PROPOSERS[name]
    vocab = data.draw(st.integers(3, most), label="vocab")
    known = data.draw(st.integers(1, vocab - 1), label="draft_vocab")
    assert error(drawn_laws(data, vocab, known), propose, decide_by) <= EXACT


@pytest.mark.parametrize("name", PROPOSERS)
@settings(deadline=None, max_examples=3)
@given(data=st.data())
def test_match_keeps_the_law_of_the_target_whatever_is_proposed(name, data):
    most, propose = PROPOSERS[name]
    vocab = data.draw(st.integers(3, most), label="vocab")
    assert error(drawn_laws(data, vocab, None), propose, match) <= EXACT


@pytest.mark.parametrize("propose", [drawn_chain(3), as_block(drawn_chain(3)), drawn_tree([2, 2])])
def test_a_draft_that_is_the_target_is_always_accepted(propose):
    """Then every residual is empty; nothing comes of dividing by it."""
    laws = random_laws(1, 3)
    same = type(laws)(3, laws.p, laws.p)
    assert error(same, propose) <= EXACT


@pytest.mark.parametrize(
    ("name", "propose"),
    [
        ("a doubtful draw is dropped without a word", cut_at_a_doubtful_candidate(3, is_declared=False)),
        (
            "a doubtful draw of a block is dropped without a word",
            as_block(cut_at_a_doubtful_candidate(3, is_declared=False)),
        ),
        ("the best of several draws", best_of_several(2)),
        ("a cut chain that is a block only where it was not cut", as_block_if_chain(CUT)),
        (
            "merged draws that are a block only where they are a chain",
            as_block_if_chain(drawn_with_replacement(2, 2)),
        ),
    ],
)
def test_a_proposer_that_breaks_the_rules_is_caught(name, propose):
    """By laws drawn without looking; match does not mind, for it asks nothing of a proposer."""
    laws = random_laws(2, 3)
    assert error(laws, propose) > 1e5 * EXACT
    assert error(laws, propose, match) <= EXACT
