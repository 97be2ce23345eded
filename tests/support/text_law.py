"""Whether texts follow a law, by a bound that is exact; and how often a whole run of the tests is wrong about it.

A text's frequency is held against its probability by Chernoff's bound, P(n * KL(found, p) >= x) <= 2 * exp(-x), for
texts that are drawn independently. It is the same x for every text of every case of every file, so that a test needs
to know of no other. All tests that compare frequencies with laws spend of one sum, `RUN`, and fail once it is spent.
"""

import math

import numpy as np

RUN = 1e-6
"""A run of all tests raises a false alarm with this probability at most, over the choice of their seeds."""

EACH = 2e-11
"""And one text with this one, so that a run may look at 50,000 texts."""

ALARM = math.log(2 / EACH)
"""The exponent x."""

_spent: list[float] = []


def spend(chance: float) -> None:
    """Take the probability of one test's false alarm out of that of the run."""
    _spent.append(chance)
    assert math.fsum(_spent) <= RUN, f"false alarms: {math.fsum(_spent)} a run, need {RUN} at most"


def surprise(texts: np.ndarray, law: np.ndarray) -> float:
    """The largest exponent x of Chernoff's bound over all texts; infinite where one came that cannot come.

    Shapes: texts int [n, L]; law float [V] * L, the probability of each text
    """
    places = np.ravel_multi_index(tuple(texts.T), law.shape)
    found, p = np.bincount(places, minlength=law.size) / len(texts), law.ravel()
    return float(len(texts) * (_part(found, p) + _part(1 - found, 1 - p)).max())


def assert_law(texts: np.ndarray, law: np.ndarray) -> None:
    """Hold texts against their law, and spend what that may cost; shapes as in `surprise`."""
    spend(EACH * law.size)
    found = surprise(texts, law)
    assert found < ALARM, (
        f"texts that do not follow their law: exponent {found:.1f}, need {ALARM:.1f} at most"
    )


def _part(found: np.ndarray, p: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(found > 0, found * np.log(found / np.maximum(p, 0)), 0)
