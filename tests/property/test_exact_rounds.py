"""Round after round, with noise that the next round meets again, and with drafts that use the target's own: all exact.

Enumerated as in tests/property/test_exact_acceptance.py, but whole texts are made by rounds alone, and each choice
knows what earlier ones have told of its noise.

Run: pytest tests/property/test_exact_rounds.py
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance import match, plain_law
from support.acceptance_laws import drawn_laws, random_laws
from support.enumeration import every_outcome
from support.keyed_noise import PRODUCT, VOCAB, KeyedNoise, Keys
from support.keyed_rounds import Rounds

from tspec.core.noise import ACCEPT, RESIDUAL, TARGET, draft_stream, gumbel, uniform
from tspec.kernels.reference import REFERENCES
from tspec.kernels.reference.accept_ratio import NoiseChooser

LENGTH = 3
EXACT = 1e-9

COUPLED = Keys(draft=lambda root, depth: (root + depth, TARGET))
CHAIN = {"widths": (1, 1)}
TREE = {"widths": (2, 1)}
MATCH = {"decide_by": match}
BLOCK = {"is_block": True}
CUT = {"cut": 0.4}

WAYS = {
    "match, a draft of its own noise": CHAIN | MATCH,
    "match, a coupled chain": CHAIN | MATCH | {"keys": COUPLED},
    "match, a coupled tree": TREE | MATCH | {"keys": COUPLED},
    "match, a coupled chain cut without a word": CHAIN
    | MATCH
    | CUT
    | {"keys": COUPLED, "is_cut_told": False},
    "ratio, a chain": CHAIN,
    "ratio, a tree": TREE,
    "ratio, a block": CHAIN | BLOCK,
    "ratio, a chain cut where it is doubtful": CHAIN | CUT,
    "ratio, a block cut where it is doubtful": CHAIN | CUT | BLOCK,
}
"""Settings of `Rounds`."""

FAULTS = {
    "the target's noise is that of the round": MATCH
    | {"keys": Keys(target=lambda root, depth: (root + 1, TARGET))},
    "draft and residual share their noise": {
        "keys": Keys(draft=lambda root, depth: (root + depth, RESIDUAL))
    },
    "a doubtful draw is dropped without a word": CUT | {"is_cut_told": False},
    "draws of a block are numbered by place": BLOCK
    | {"keys": Keys(draft=lambda root, depth: (root + depth, draft_stream(0)))},
    "accept tests of a block are numbered by place": BLOCK
    | {"keys": Keys(accept=lambda root, depth, node: (root + depth, ACCEPT))},
    "a block is coupled": BLOCK | {"keys": COUPLED},
}
"""What is changed of a chain that is verified by ratio."""


def error(rounds: Rounds) -> float:
    """How far the law of the texts is from the target's, at its worst place."""
    return float(np.abs(rounds.law(LENGTH) - plain_law(rounds.laws, LENGTH)).max())


@pytest.mark.parametrize("draft_vocab", [None, 2])
@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=3)
@given(data=st.data())
def test_texts_of_many_rounds_follow_the_law_of_the_target(way, draft_vocab, data):
    """Also where the draft does not know a token."""
    assert error(Rounds(drawn_laws(data, VOCAB, draft_vocab), **WAYS[way])) <= EXACT


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_noise_or_the_draft_is_caught(fault):
    assert error(Rounds(random_laws(4, VOCAB), **CHAIN | FAULTS[fault])) > 1e5 * EXACT


def test_enumerated_noise_couples_two_laws_as_gumbel_max_does():
    """Both say x with chance 1 / sum over y of max(p_y / p_x, q_y / q_x): that E_y / max(...) is least at x."""
    p, q = np.array([0.5, 0.2, 0.3]), np.array([0.1, 0.65, 0.25])
    agree = np.zeros(VOCAB)
    for chance, (first, second) in every_outcome(
        lambda branches: [(noise := KeyedNoise(branches, {})).choose((0,), p), noise.choose((0,), q)]
    ):
        agree[first] += chance * (first == second)
    expected = 1 / np.maximum(p / p[:, None], q / q[:, None]).sum(axis=1)
    np.testing.assert_allclose(agree, expected, rtol=1e-12)


def test_what_is_enumerated_is_keyed_as_the_references_key_it():
    seed, root, depths, tokens = 7, 5, [0, 1, 1, 2], np.arange(VOCAB)
    chooser = NoiseChooser(seed, root, depths, [0] * len(depths))
    given = torch.zeros(1, len(depths), VOCAB), torch.ones(1), torch.tensor([seed]), torch.tensor([root])
    (samples,) = REFERENCES["sample"](
        {}, *given, torch.tensor([depths]), torch.tensor([len(depths)]), None, None
    )
    for node, depth in enumerate(depths):
        residual = gumbel(seed, *PRODUCT.residual(root, depth + 1), tokens)
        assert np.array_equal(chooser.noisy(node, torch.ones(VOCAB)), residual)
        position, stream, number = PRODUCT.accept(root, depth, node)
        limit = float(uniform(seed, position, stream, np.array(number)))
        assert chooser.accept(node, limit) and not chooser.accept(node, np.nextafter(limit, 0))
        assert samples[0, node] == gumbel(seed, *PRODUCT.target(root, depth + 1), tokens).argmax()
