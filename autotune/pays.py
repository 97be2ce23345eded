"""Where speculation pays, from measured passes alone: by the chance of a candidate, chain length, and sequences."""

from collections.abc import Mapping, Sequence

import numpy as np

from tspec.core.pass_costs import PassCosts


def expected_tokens(chance: float, candidates: int) -> float:
    """Tokens of a round with a chain whose candidates are right with one chance (arXiv:2211.17192, equation 1)."""
    return sum(chance**depth for depth in range(candidates + 1))


def speed_ups(
    costs: PassCosts, context: int, chances: Sequence[float], most_candidates: int, draft_s: float = 0.0
) -> np.ndarray:
    """Return float64 [chances, most_candidates]: of chains of 1, 2, … candidates over plain decoding, one sequence.

    draft_s  that a candidate takes to be proposed
    """
    node_s, context_s = costs.by_nodes(most_candidates + 1), costs.by_context()
    plain_s = costs.plain_s(1, context)
    found = np.empty((len(chances), most_candidates))
    for place, chance in enumerate(chances):
        for count in range(1, most_candidates + 1):
            round_s = node_s[count + 1] + context * context_s[count + 1] + count * draft_s
            found[place, count - 1] = expected_tokens(chance, count) * plain_s / round_s
    return found


def least_chance(plain_s: float, round_s: float, candidates: int) -> float | None:
    """The chance from which a chain is as fast as plain decoding; None where no chance is enough."""
    low, high = 0.0, 1.0
    if (candidates + 1) * plain_s <= round_s:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        if expected_tokens(middle, candidates) * plain_s < round_s:
            low = middle
        else:
            high = middle
    return high


def least_chances(
    seconds: Mapping[tuple[int, int], float], candidates: int
) -> tuple[list[int], list[float | None]]:
    """Numbers of sequences for which passes were timed, and the least chance for each.

    seconds  of a pass by (sequences, nodes of each)
    """
    rows = sorted(
        {row for row, nodes in seconds if nodes == 1}
        & {row for row, nodes in seconds if nodes == candidates + 1}
    )
    return rows, [least_chance(seconds[row, 1], seconds[row, candidates + 1], candidates) for row in rows]
