"""Pass times as they turn out: what was timed at the start is corrected by every pass that runs.

Logarithms of the times follow a random walk, most of it in step, as a machine changes its pace for all passes at once,
and little of it each by itself. So a slow minute makes all passes dearer, and only what differs between them makes
candidates dearer.

Source    Kalman filter: Kalman 1960
"""

import math

import numpy as np

from tspec.core.pass_costs import PassCosts
from tspec.kernels.jit import native

START_TOGETHER, START_ALONE = 0.3, 0.15
"""Standard deviations, as logarithms: how far the times that were taken at the start may be off, all and each."""
STEP_TOGETHER, STEP_ALONE = 0.02, 0.003
"""How far they move from pass to pass."""
NOISE = 0.1
"""How far a single pass is off."""
MOST_OFF = 0.3
"""Further off it may be for another reason: plans are bound on first use, and others use the machine."""
REFRESH_PASSES = 8


class Pace:
    """Seconds of a pass by its nodes: those of `costs`, times a factor for each number of nodes that was timed."""

    def __init__(self, costs: PassCosts) -> None:
        self._costs = costs
        self._timed = np.array(costs.nodes)
        self._factors, self._in_use = np.zeros(
            (2, len(costs.nodes))
        )  # logarithms; the latter are in `node_s`
        self._covariance = START_TOGETHER**2 + START_ALONE**2 * np.eye(len(costs.nodes))
        self._num_passes = 0
        self._node_s = np.zeros(0)

    def node_s(self, most: int) -> np.ndarray:
        """Return float64 [more than `most`]: seconds of a pass by its nodes."""
        if most >= len(self._node_s):
            self._node_s = self._costs.by_nodes(2 * most)
            self._refresh()
        return self._node_s

    def note(self, num_nodes: int, predicted_s: float, measured_s: float) -> None:
        """Learn from a pass over so many nodes in all; `predicted_s` follows from `node_s`."""
        off = math.log(measured_s / predicted_s)
        _correct(self._factors, self._in_use, self._covariance, self._timed, num_nodes, off)
        self._num_passes += 1
        if self._num_passes % REFRESH_PASSES == 0:
            self._refresh()

    def _refresh(self) -> None:
        most, self._in_use = len(self._node_s) - 1, self._factors.copy()
        factors = np.exp(np.interp(np.arange(most + 1), self._timed, self._factors))
        self._node_s = np.maximum.accumulate(self._costs.by_nodes(most) * factors)


@native()
def _correct(factors, in_use, covariance, timed, num_nodes, off):
    """Shift all factors by what one pass says of the nearest number of nodes that was timed.

    off   how far the pass was from what the factors in use let expect
    """
    size, place = len(factors), 0
    for other in range(size):
        if abs(timed[other] - num_nodes) < abs(timed[place] - num_nodes):
            place = other
        covariance[other, :] += STEP_TOGETHER**2
        covariance[other, other] += STEP_ALONE**2
    weights = covariance[:, place] / (covariance[place, place] + NOISE**2)
    off -= factors[place] - in_use[place]
    factors += weights * max(-MOST_OFF, min(MOST_OFF, off))
    of_place = covariance[place].copy()
    for other in range(size):
        covariance[other] -= weights[other] * of_place
