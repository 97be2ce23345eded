"""Noise as core/noise.py keys it, but enumerated: what is asked of one key again is answered by the same noise.

Of three tokens, Gumbel-max takes the one whose E / weight is least; the E are exponential. Only E / sum(E) counts: a
point that lies evenly on a triangle. A choice cuts the triangle into convex cells, one a token, whose areas are its
chances; what the next choice by the same noise has to go by is the cell that was taken. So laws that share noise are
enumerated, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from support.enumeration import Branches

from tspec.core.noise import ACCEPT, RESIDUAL, TARGET, draft_stream
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.reference.accept_ratio import DrawnTree

VOCAB = 3
NEVER = 1e-12
"""Chances below this are rounding: of cells that share a border."""

Key = tuple[int, ...]
"""Position and stream, of accept tests also the node."""
Point = tuple[float, float, float]
Known = dict[Key, tuple]
"""Corners of the cell that a key's noise lies in, each a Point; or the two ends of what its uniform number lies in."""

TRIANGLE: tuple[Point, ...] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


@dataclass
class KeyedNoise:
    """Chances are branches; `known` is what earlier choices have said of the noise of each key."""

    branches: Branches
    known: Known

    def choose(self, key: Key, weights: Sequence[float]) -> int:
        """The token that Gumbel-max takes; three weights, some above 0."""
        cell = self.known.get(key, TRIANGLE)
        cells = [_cell_of(token, weights, cell) for token in range(VOCAB)]
        token = self.branches.choose(_chances([_area(each) for each in cells]))
        self.known[key] = cells[token]
        return token

    def accept(self, key: Key, probability: float) -> bool:
        """Whether a uniform number is at most `probability`."""
        low, high = self.known.get(key, (0.0, 1.0))
        limit = min(max(probability, low), high)
        is_accepted = self.branches.choose(_chances([high - limit, limit - low])) == 1
        self.known[key] = (low, limit) if is_accepted else (limit, high)
        return is_accepted


def _chances(sizes: Sequence[float]) -> list[float]:
    return [size / sum(sizes) if size > NEVER * sum(sizes) else 0.0 for size in sizes]


def _cell_of(token: int, weights: Sequence[float], cell: tuple[Point, ...]) -> tuple[Point, ...]:
    """The part of a cell where no other token has a smaller E / weight."""
    for other in range(VOCAB):
        if other != token:
            over = [weights[token] * corner[other] - weights[other] * corner[token] for corner in cell]
            cell = _cut(cell, over)
    return cell


def _cut(corners: tuple[Point, ...], over: Sequence[float]) -> tuple[Point, ...]:
    """The part of a convex polygon where a linear function, of which `over` are the values, is at least 0."""
    kept: list[Point] = []
    for here, there in pairwise(range(-1, len(corners))):
        high, low = over[here], over[there]
        if high >= 0:
            kept.append(corners[here])
        if high * low < 0:
            share = high / (high - low)
            ends = zip(corners[here], corners[there], strict=True)
            x, y, z = (start + share * (end - start) for start, end in ends)
            kept.append((x, y, z))
    return tuple(kept)


def _area(corners: tuple[Point, ...]) -> float:
    """Up to a factor that is the same for all polygons in the triangle."""
    sides = pairwise(range(-1, len(corners)))
    turns = (corners[a][0] * corners[b][1] - corners[a][1] * corners[b][0] for a, b in sides)
    return abs(sum(turns))


@dataclass(frozen=True)
class Keys:
    """What noise is keyed by: (position of the root, depth of the token) -> Key. The accept test takes the node, too.

    The defaults are the product's; others plant faults, or couple the draft to the target.
    """

    target: Callable[[int, int], Key] = lambda root, depth: (root + depth, TARGET)
    draft: Callable[[int, int], Key] = lambda root, depth: (root + 1, draft_stream(depth))
    accept: Callable[[int, int, int], Key] = lambda root, depth, node: (root + 1, ACCEPT, node)
    residual: Callable[[int, int], Key] = lambda root, depth: (root + depth, RESIDUAL)


PRODUCT = Keys()


@dataclass(frozen=True)
class KeyedChooser:
    """The chooser of acceptance for a tree whose root stands at position `root`."""

    noise: KeyedNoise
    keys: Keys
    root: int
    depth: Sequence[int]
    tree: DrawnTree

    def target(self, node: int) -> int:
        return self.noise.choose(
            self.keys.target(self.root, self.depth[node] + 1), self.tree.p(node).tolist()
        )

    def accept(self, candidate: int, probability: float) -> bool:
        return self.noise.accept(self.keys.accept(self.root, self.depth[candidate], candidate), probability)

    def draw(self, node: int, weights: torch.Tensor) -> int:
        if weights.sum() <= 0:
            return NO_TOKEN
        return self.noise.choose(self.keys.residual(self.root, self.depth[node] + 1), weights.tolist())
