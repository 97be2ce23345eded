"""Runs code that leaves its chances to others once for every way they may fall, each with its exact probability."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from tspec.core.sampling import NO_TOKEN
from tspec.kernels.reference.accept_ratio import DrawnTree

Result = TypeVar("Result")


@dataclass
class Branches:
    """One way through: the choices of `script`, then always the first possible one."""

    script: list[int]
    probability: float = 1.0
    taken: list[int] = field(default_factory=list)
    others: list[list[int]] = field(default_factory=list)

    def choose(self, weights: Sequence[float]) -> int:
        """Return the number of one weight, of those above 0; chances are in proportion to them."""
        possible = [choice for choice, weight in enumerate(weights) if weight > 0]
        if len(self.taken) < len(self.script):
            choice = self.script[len(self.taken)]
        else:
            choice, *rest = possible
            self.others += [[*self.taken, other] for other in rest]
        self.probability *= weights[choice] / sum(weights)
        self.taken.append(choice)
        return choice


def every_outcome(run: Callable[[Branches], Result]) -> Iterator[tuple[float, Result]]:
    """Each way through `run`: its probability, and what it returned. The probabilities sum to 1."""
    scripts: list[list[int]] = [[]]
    while scripts:
        branches = Branches(scripts.pop())
        result = run(branches)
        scripts += branches.others
        yield branches.probability, result


@dataclass(frozen=True)
class EnumeratedChooser:
    """A chooser of acceptance whose chances are branches; the target samples p itself."""

    branches: Branches
    tree: DrawnTree

    def target(self, node: int) -> int:
        return self.branches.choose(self.tree.p(node).tolist())

    def accept(self, candidate: int, probability: float) -> bool:
        chance = min(probability, 1.0)
        return self.branches.choose([1 - chance, chance]) == 1

    def draw(self, node: int, weights: torch.Tensor) -> int:
        return self.branches.choose(weights.tolist()) if weights.sum() > 0 else NO_TOKEN
