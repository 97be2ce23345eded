"""Whether texts follow a law, by a bound that is exact: how likely a false alarm is can be stated."""

import numpy as np


def surprise(texts: np.ndarray, law: np.ndarray) -> float:
    """The largest exponent x of Chernoff's bound over all texts: P(n * KL(found, p) >= x) <= 2 * exp(-x) for each.

    Shapes: texts int [n, L]; law float [V] * L, the probability of each text
    """
    places = np.ravel_multi_index(tuple(texts.T), law.shape)
    found, p = np.bincount(places, minlength=law.size) / len(texts), law.ravel()
    return float(len(texts) * (_part(found, p) + _part(1 - found, 1 - p)).max())


def alarm(num_texts: int, false_alarm: float) -> float:
    """The exponent that so many texts, those of all cases together, exceed with probability `false_alarm` at most."""
    return float(np.log(2 * num_texts / false_alarm))


def _part(found: np.ndarray, p: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(found > 0, found * np.log(found / np.maximum(p, 0)), 0)
