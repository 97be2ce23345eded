"""What a verify pass costs, by its nodes and contexts: what a controller weighs candidates against."""

from dataclasses import dataclass

import numpy as np

from tspec.core.errors import ConfigError
from tspec.core.tree import MAX_NODES


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds of verify passes on one machine and model.

    nodes      numbers of nodes that were timed, from 1 on, rising
    seconds    of a pass with so many nodes in all, on contexts of no length
    context_s  more for each token of context of a sequence that has so many nodes
    ask_s      of asking all lookups of a union for one sequence
    is_padded  whether rows and nodes that only fill a bucket cost as much as others
    """

    nodes: tuple[int, ...]
    seconds: tuple[float, ...]
    context_s: tuple[float, ...]
    is_padded: bool = False
    ask_s: float = 0.0

    def __post_init__(self) -> None:
        lengths = {len(self.nodes), len(self.seconds), len(self.context_s)}
        is_rising = all(one < other for one, other in zip(self.nodes, self.nodes[1:], strict=False))
        if lengths != {len(self.nodes)} or not self.nodes or self.nodes[0] != 1 or not is_rising:
            raise ConfigError(
                "pass costs",
                got=f"nodes {self.nodes}, {len(self.seconds)} and {len(self.context_s)} times",
                need="rising numbers of nodes from 1 on, and both times of each",
                fix="Measure them again.",
            )
        are_times = all(0 < each < np.inf for each in self.seconds)
        if not are_times or not all(0 <= each < np.inf for each in self.context_s):
            raise ConfigError(
                "pass costs",
                got=f"{self.seconds} s a pass, {self.context_s} s a token of context",
                need="finite times above 0, and at least 0 a token",
                fix="Measure them again.",
            )

    @classmethod
    def flat(cls) -> "PassCosts":
        """Costs of a machine on which nodes are free: every candidate pays, as far as limits let it in."""
        return cls((1,), (1.0,), (0.0,))

    def by_nodes(self, most: int) -> np.ndarray:
        """Return float64 [most + 1]: seconds of a pass with so many nodes in all; never less for more nodes.

        Between timed numbers costs rise evenly, and behind the last as they did between the last two.
        """
        return _spread(self.nodes, self.seconds, most)

    def by_context(self) -> np.ndarray:
        """Return float64 [MAX_NODES + 1]: seconds a token of context, by the nodes of its sequence."""
        return _spread(self.nodes, self.context_s, MAX_NODES)

    def plain_s(self, num_rows: int, num_context: int) -> float:
        """Seconds of a plain pass of so many sequences with so many tokens of context together."""
        return float(self.by_nodes(num_rows)[num_rows] + num_context * self.context_s[0])

    def as_json(self) -> dict[str, object]:
        """The costs, for a file."""
        return {
            "nodes": list(self.nodes),
            "seconds": list(self.seconds),
            "context_s": list(self.context_s),
            "is_padded": self.is_padded,
            "ask_s": self.ask_s,
        }


def _spread(nodes: tuple[int, ...], values: tuple[float, ...], most: int) -> np.ndarray:
    wanted = np.arange(most + 1)
    spread = np.interp(wanted, nodes, values)
    if len(nodes) > 1:
        slope = max(0.0, (values[-1] - values[-2]) / (nodes[-1] - nodes[-2]))
        spread = np.where(wanted > nodes[-1], values[-1] + slope * (wanted - nodes[-1]), spread)
    return np.maximum.accumulate(spread)
