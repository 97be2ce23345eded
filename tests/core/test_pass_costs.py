"""Costs of passes between and behind those that were timed.

Run: pytest tests/core/test_pass_costs.py
"""

import numpy as np
import pytest

from tspec.core.errors import ConfigError
from tspec.core.pass_costs import PassCosts
from tspec.core.tree import MAX_NODES

COSTS = PassCosts((1, 4, 8), (1.0, 4.0, 6.0), (0.0, 3e-3, 3e-3))


def test_between_timed_passes_costs_rise_evenly():
    assert COSTS.by_nodes(8)[1:].tolist() == [1.0, 2.0, 3.0, 4.0, 4.5, 5.0, 5.5, 6.0]
    assert COSTS.by_context()[1:9] == pytest.approx([0, 1e-3, 2e-3, 3e-3, 3e-3, 3e-3, 3e-3, 3e-3])


def test_behind_the_last_they_rise_as_before():
    assert COSTS.by_nodes(12)[9:].tolist() == [6.5, 7.0, 7.5, 8.0]
    assert len(COSTS.by_nodes(1000)) == 1001
    assert COSTS.by_context()[MAX_NODES] == 3e-3


def test_more_nodes_never_cost_less():
    """A timing that fell is taken for noise, and never goes on below zero."""
    falling = PassCosts((1, 2, 4), (3.0, 5.0, 2.0), (2e-3, 1e-3, 0.0))
    assert falling.by_nodes(100)[2:].tolist() == [5.0] * 99
    assert falling.by_context()[1:].tolist() == [2e-3] * MAX_NODES
    assert (np.diff(COSTS.by_nodes(100)) >= 0).all()


def test_plain_passes():
    costs = PassCosts((1, 3), (1.0, 2.0), (1e-3, 5e-3))
    assert costs.plain_s(1, 100) == pytest.approx(1.1)
    assert costs.plain_s(3, 600) == pytest.approx(2.6)
    assert costs.plain_s(5, 0) == pytest.approx(3.0)


def test_flat_costs_are_the_same_for_any_number():
    flat = PassCosts.flat()
    assert set(flat.by_nodes(500).tolist()) == {1.0} and not flat.by_context().any()


def test_as_json():
    assert COSTS.as_json() == {
        "nodes": [1, 4, 8],
        "seconds": [1.0, 4.0, 6.0],
        "context_s": [0.0, 3e-3, 3e-3],
        "is_padded": False,
        "ask_s": 0.0,
    }


@pytest.mark.parametrize(
    ("nodes", "seconds", "context_s"),
    [
        ((), (), ()),
        ((2, 3), (1.0, 2.0), (0.0, 0.0)),
        ((1, 3, 3), (1.0, 2.0, 3.0), (0.0, 0.0, 0.0)),
        ((1, 4, 2), (1.0, 2.0, 3.0), (0.0, 0.0, 0.0)),
        ((1, 2), (1.0,), (0.0, 0.0)),
        ((1, 2), (1.0, 2.0), (0.0,)),
        ((1, 2), (0.0, 2.0), (0.0, 0.0)),
        ((1, 2), (1.0, -2.0), (0.0, 0.0)),
        ((1, 2), (1.0, 2.0), (0.0, -1e-9)),
        ((1, 2), (1.0, float("nan")), (0.0, 0.0)),
        ((1, 2), (1.0, float("inf")), (0.0, 0.0)),
    ],
)
def test_impossible_costs_are_refused(nodes, seconds, context_s):
    with pytest.raises(ConfigError, match=r"pass costs: got .*need .*Measure them again"):
        PassCosts(nodes, seconds, context_s)
