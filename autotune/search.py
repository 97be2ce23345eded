"""Successive halving: many configurations measured a few times, the best third of them three times as often, and so on.

What measures is given, so that a search knows neither a backend nor a clock. In each turn every configuration that is
left is measured once, so that a machine that slows down does so for all. Medians decide.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

Config = TypeVar("Config")

FIRST_TURNS = 3
"""Turns of the first round."""

KEPT_SHARE = 3
"""One in so many is kept after a round, and the next round has so many times the turns."""

FIRST_SHARE = 0.4
"""Share of the time that the first round may take; where it cannot hold all configurations, it has the first ones."""

HALVING_SHARE = 0.8
"""Share of the time after which no further turn begins but those of the last two."""

LAST_TURNS = 15
"""Turns in which the best one and the default meet alone."""

LEAST_TURNS = 5
"""Where there was time for fewer of them, nothing is found."""

LEAST_GAIN = 0.01
"""What the best one must gain over the default in those, and at most lose in a case; else the default is found."""

LEAST_WINS = 0.75
"""Share of those turns in which it must be the faster: by luck it is in half of them."""

LOSS_WEIGHT = 3.0
"""A case that loses counts so many times one that gains: a faster chunk of a prompt must not pay for slower tokens."""

SEED = 0


def nearest_first(space: Iterable[Any], default: Any) -> list[Any]:
    """Order configurations by how many numbers they differ in from the default; by chance, the same each time, else."""
    shuffled = list(space)
    random.Random(SEED).shuffle(shuffled)
    numbers = asdict(default)
    return sorted(
        shuffled, key=lambda each: sum(asdict(each)[name] != number for name, number in numbers.items())
    )


@dataclass(frozen=True, slots=True)
class Found(Generic[Config]):
    """What a search found.

    config        the best configuration, or the default where none is surely better
    time_ratio    its time over the default's, of the last turns
    num_measured  configurations that were measured at all
    num_in_space  configurations that there are
    is_sure       whether there was time for the last turns
    """

    config: Config
    time_ratio: float
    num_measured: int
    num_in_space: int
    is_sure: bool = True


class Search(Generic[Config]):
    """One search.

    measure  gives the seconds of one run of a configuration, one number a case (as for 1, 8 and 64 nodes)
    clock    gives the time in seconds
    """

    def __init__(
        self, measure: Callable[[Config], Sequence[float]], clock: Callable[[], float], budget_s: float
    ) -> None:
        self._measure = measure
        self._clock = clock
        self._start = clock()
        self._budget_s = budget_s
        self._samples: dict[Config, list[Sequence[float]]] = {}

    def run(self, space: Sequence[Config], default: Config) -> Found[Config]:
        """Search `space`, its first ones where time is short. It is over when `budget_s` is, one turn past it at most.

        The default is measured in every turn, also where it is not in the space.
        """
        self._measure(default)  # warms up
        before = self._clock()
        self._take(default)
        one_s = max(self._clock() - before, 1e-9)
        others = [each for each in space if each != default]
        most = int(FIRST_SHARE * self._budget_s / (FIRST_TURNS * one_s))
        left, turns = [default, *others[: max(1, most)]], FIRST_TURNS
        num_measured = len(left)
        while len(left) > 1 and self._has_time(HALVING_SHARE):
            self._play(left, turns, HALVING_SHARE)
            best = sorted(left[1:], key=lambda each: self._score(each, default))
            left = [default, *best[: max(1, len(best) // KEPT_SHARE)]]
            if len(left) == 2:
                break
            turns *= KEPT_SHARE
        return self._decide(left, default, num_measured, len(others) + 1)

    def _decide(
        self, left: list[Config], default: Config, num_measured: int, num_in_space: int
    ) -> Found[Config]:
        """Let the best one and the default meet alone, on samples of those turns only."""
        measured = [each for each in left[1:] if each in self._samples]
        if not measured:
            return Found(default, 1.0, num_measured, num_in_space, is_sure=num_in_space == 1)
        best = min(measured, key=lambda each: self._score(each, default))
        self._samples = {}
        self._play([default, best], LAST_TURNS)
        if len(self._samples[best]) < LEAST_TURNS:
            return Found(default, 1.0, num_measured, num_in_space, is_sure=False)
        ratios = self._ratios(best, default)
        mean = statistics.geometric_mean(ratios)
        is_surely_better = self._wins(best, default) >= LEAST_WINS and mean <= 1 - LEAST_GAIN
        if is_surely_better and max(ratios) <= 1 + LEAST_GAIN:
            return Found(best, mean, num_measured, num_in_space)
        return Found(default, 1.0, num_measured, num_in_space)

    def _wins(self, config: Config, default: Config) -> float:
        """Share of the turns in which the times of all cases, weighed alike, are below the default's."""
        turns = zip(self._samples[config], self._samples[default], strict=True)
        return statistics.mean(math.prod(mine) < math.prod(other) for mine, other in turns)

    def _play(self, configs: Sequence[Config], turns: int, share: float = 1.0) -> None:
        """At least one turn; the others as far as there is time, of which this is a share."""
        for turn in range(turns):
            if turn and not self._has_time(share):
                return
            for config in configs:
                self._take(config)

    def _take(self, config: Config) -> None:
        self._samples.setdefault(config, []).append(self._measure(config))

    def _score(self, config: Config, default: Config) -> float:
        """Mean over the cases of the logarithm of the time over the default's, losses weighted."""
        gains = (math.log(ratio) for ratio in self._ratios(config, default))
        return statistics.mean(gain * (LOSS_WEIGHT if gain > 0 else 1) for gain in gains)

    def _ratios(self, config: Config, default: Config) -> list[float]:
        """Of each case the time over the default's."""
        pairs = zip(self._medians(config), self._medians(default), strict=True)
        return [mine / other for mine, other in pairs]

    def _medians(self, config: Config) -> list[float]:
        return [statistics.median(case) for case in zip(*self._samples[config], strict=True)]

    def _has_time(self, share: float = 1.0) -> bool:
        return self._clock() - self._start < share * self._budget_s
