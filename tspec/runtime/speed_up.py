"""What speculation costs and gives: times of rounds with candidates, and the speed-up that they let expect.

Source    Leviathan et al., arXiv:2211.17192, equation 1 (expected tokens) and theorem 3.8 (with its cost of a verify
          pass, there equal to a plain one, as measured)
"""

from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, fields, replace

from tspec.runtime.inputs import Executor
from tspec.runtime.pass_times import pass_s

PLAIN_WEIGHT = 0.2
"""Weight of the newest plain round in the running mean: contexts grow, and machines change their pace."""


@dataclass(slots=True)
class RoundTimes:
    """Sums over the rounds of a sequence in which it had candidates, or of many sequences, each with its own wait.

    num_tokens   accepted candidates and bonus tokens
    num_judged   candidates that were looked at: those up to the first refused one
    depths       depths of the trees, added up
    draft_s      seconds that proposing took
    verify_s     seconds of the verify passes
    total_s      seconds of the rounds, the host's own work included
    plain_s      seconds that plain rounds of as many sequences would have taken
    """

    num_rounds: int = 0
    num_tokens: int = 0
    num_judged: int = 0
    depths: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0
    plain_s: float = 0.0

    @classmethod
    def of(cls, draft_s: float, verify_s: float, total_s: float) -> "RoundTimes":
        """Times of one round."""
        return cls(draft_s=draft_s, verify_s=verify_s, total_s=total_s)

    @property
    def cost_ratio(self) -> float | None:
        """Time of proposing over that of verifying."""
        return self.draft_s / self.verify_s if self.verify_s > 0 else None

    @property
    def alpha(self) -> float | None:
        """Chance that a candidate which is looked at is accepted."""
        return (self.num_tokens - self.num_rounds) / self.num_judged if self.num_judged else None

    @property
    def expected_tokens(self) -> float | None:
        """Tokens a round, if every candidate were accepted with the same chance and all trees were equally deep."""
        alpha = self.alpha
        if alpha is None:
            return None
        depth = self.depths / self.num_rounds
        return depth + 1 if alpha == 1 else (1 - alpha ** (depth + 1)) / (1 - alpha)

    @property
    def expected_speed_up(self) -> float | None:
        """Expected tokens over the cost of proposing and verifying, in plain rounds."""
        cost_s, tokens = self.draft_s + self.verify_s, self.expected_tokens
        return None if tokens is None or cost_s == 0 else tokens * self.plain_s / cost_s

    @property
    def measured_speed_up(self) -> float | None:
        """Tokens that came over what the rounds took, in plain rounds."""
        if self.total_s == 0:
            return None
        return self.num_tokens / self.num_rounds * self.plain_s / self.total_s

    def add(self, other: "RoundTimes") -> None:
        """Add another's sums."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def since(self, earlier: "RoundTimes") -> "RoundTimes":
        """What was added after `earlier`."""
        return RoundTimes(*(getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)))


class PlainTimes:
    """Seconds of a plain round, by the number of sequences in it: measured whenever one comes by."""

    def __init__(self) -> None:
        self._mean_s: dict[int, float] = {}
        self._is_warm: set[int] = set()

    def add(self, rows: int, seconds: float) -> None:
        """Note a plain round. The first of its size is left out: it may have bound a plan."""
        if rows not in self._is_warm:
            self._is_warm.add(rows)
        elif rows in self._mean_s:
            self._mean_s[rows] += PLAIN_WEIGHT * (seconds - self._mean_s[rows])
        else:
            self._mean_s[rows] = seconds

    def split(
        self, times: RoundTimes, depths: List[int], num_out: List[int]
    ) -> Iterator[tuple[int, RoundTimes]]:
        """From the times of a round to those of each sequence with candidates: (its number, what it waited and got).

        None for a plain round, which is noted, and while no plain one of as many sequences has been timed.
        depths, num_out   a sequence: depth of its tree, and tokens that it was given
        """
        if not any(depths):
            self.add(len(depths), times.total_s)
        plain_s = self._mean_s.get(len(depths))
        if plain_s is None:
            return
        for number, (depth, out) in enumerate(zip(depths, num_out, strict=True)):
            if depth > 0:
                what = {"num_rounds": 1, "num_tokens": out, "num_judged": min(out, depth), "depths": depth}
                yield number, replace(times, **what, plain_s=plain_s)


def known_plain(seconds: float) -> PlainTimes:
    """What a plain pass of one sequence takes, where that was measured before."""
    times = PlainTimes()
    for _ in range(2):  # the first never counts
        times.add(1, seconds)
    return times


def time_plain(executor: Executor) -> PlainTimes:
    """Time plain passes of one sequence, on KV blocks that nobody uses yet."""
    times = PlainTimes()
    for _ in range(3):
        times.add(1, pass_s(executor, 1, 0))
    return times
