"""Pass times follow what passes really take: a wrong start is put right, a slow minute changes no choice.

Run: pytest tests/proposers/test_pace.py
"""

import numpy as np
import pytest

from tspec.core.pass_costs import PassCosts
from tspec.proposers.pace import Pace

NODES = (1, 4, 8, 9, 16, 32)
TRUE_S = np.array([0.0155, 0.0172, 0.0235, 0.025, 0.031, 0.047])


def costs(seconds=TRUE_S):
    return PassCosts(NODES, tuple(np.asarray(seconds).tolist()), (0.0,) * len(NODES))


def run(pace, numbers, true_s, noise=0.05, seed=0):
    """Passes over so many nodes each, on a machine that takes `true_s` for those of NODES."""
    generator = np.random.default_rng(seed)
    for number in numbers:
        measured = np.interp(number, NODES, true_s) * np.exp(noise * generator.standard_normal())
        pace.note(number, pace.node_s(64)[number], measured)
    return pace.node_s(64)


def test_without_passes_it_is_what_was_timed():
    found = Pace(costs()).node_s(100)
    assert len(found) > 100
    np.testing.assert_allclose(found, costs().by_nodes(len(found) - 1))


def test_a_wrong_start_is_put_right_within_a_few_passes():
    """As it was timed on a busy machine: a plain pass as slow as one of four nodes, eight nodes nearly for nothing."""
    pace = Pace(costs([0.0239, 0.0239, 0.0273, 0.0303, 0.035, 0.056]))
    found = run(pace, [1, 4, 8] * 8, TRUE_S)
    assert found[8] / found[1] == pytest.approx(TRUE_S[2] / TRUE_S[0], rel=0.06)
    assert found[4] / found[1] == pytest.approx(TRUE_S[1] / TRUE_S[0], rel=0.06)


def test_a_slower_machine_changes_no_ratio():
    """Plain passes alone tell of it; what was timed of the others follows."""
    pace = Pace(costs())
    before = run(pace, [1, 4, 8, 16] * 30, TRUE_S)
    found = run(pace, [1] * 200, 1.5 * TRUE_S)
    assert found[1] == pytest.approx(1.5 * TRUE_S[0], rel=0.05)
    for number in (4, 8, 16):
        assert found[number] / found[1] == pytest.approx(before[number] / before[1], rel=0.12)


def test_noise_moves_ratios_little():
    pace = Pace(costs())
    ratios = []
    for seed in range(40):
        found = run(pace, [1, 4, 1, 8], TRUE_S, noise=0.1, seed=seed)
        ratios.append(found[4] / found[1])
    assert np.std(ratios[10:]) < 0.04
    assert np.mean(ratios[10:]) == pytest.approx(TRUE_S[1] / TRUE_S[0], rel=0.03)


def test_one_pass_that_took_for_ever_is_no_reason():
    pace = Pace(costs())
    run(pace, [1, 8] * 20, TRUE_S)
    pace.note(8, pace.node_s(64)[8], 3.0)
    assert run(pace, [1] * 8, TRUE_S)[8] < 1.35 * TRUE_S[2]


def test_more_nodes_are_never_cheaper():
    found = run(Pace(costs()), [1, 32, 16, 4] * 10, TRUE_S[::-1], noise=0.3)
    assert (np.diff(found) >= 0).all()


def test_flat_costs_stay_flat():
    pace = Pace(PassCosts.flat())
    for number in (1, 5, 9):
        pace.note(number, pace.node_s(64)[number], 0.02)
    assert len(set(pace.node_s(64).tolist())) == 1
