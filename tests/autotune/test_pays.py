"""Where speculation pays.

Run: pytest tests/autotune/test_pays.py
"""

import pytest

from autotune.pays import expected_tokens, least_chance, least_chances, speed_ups
from tspec.core.pass_costs import PassCosts

COSTS = PassCosts((1, 2, 4), (1.0, 1.5, 2.5), (0.0, 0.0, 0.0))


def test_speed_up_is_tokens_over_cost():
    found = speed_ups(COSTS, 0, [0.0, 0.5, 1.0], 3)
    assert found[0].tolist() == pytest.approx([1 / 1.5, 1 / 2.0, 1 / 2.5])
    assert found[1].tolist() == pytest.approx([1.5 / 1.5, 1.75 / 2.0, 1.875 / 2.5])
    assert found[2].tolist() == pytest.approx([2 / 1.5, 3 / 2.0, 4 / 2.5])
    assert speed_ups(COSTS, 0, [1.0], 1, draft_s=0.5)[0, 0] == pytest.approx(1.0)


def test_context_counts():
    costs = PassCosts((1, 2), (1.0, 1.0), (0.0, 1e-3))
    assert speed_ups(costs, 1000, [1.0], 1)[0, 0] == pytest.approx(1.0)


@pytest.mark.parametrize("candidates", [1, 3, 7])
def test_the_least_chance_is_where_both_are_equal(candidates):
    chance = least_chance(1.0, 1.6, candidates)
    assert expected_tokens(chance, candidates) == pytest.approx(1.6)
    assert least_chance(1.0, candidates + 1.0, candidates) is None
    assert least_chance(1.0, 1.0, candidates) == pytest.approx(0.0, abs=1e-9)


def test_only_sequences_that_were_timed_both_ways_count():
    seconds = {(1, 1): 1.0, (1, 2): 1.5, (2, 1): 1.0, (4, 2): 3.0}
    assert least_chances(seconds, 1) == ([1], [pytest.approx(0.5)])
