"""The graph: ops in SSA form over immutable values. The dims `B` (rows) and `T` (nodes) are symbolic."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tspec.core.dtypes import DType

OF_TARGET = "target:"
"""Goes before the name of a weight that is the target's, in the plan of a proposer's model."""

FEATURES = "features"
"""The state that holds what a proposer's head reads of the target, by position."""

Dim = int | str
Shape = tuple[Dim, ...]


class Role(Enum):
    """Where a value's memory comes from."""

    INPUT = "input"
    WEIGHT = "weight"
    STATE = "state"
    TEMP = "temp"


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor. A weight lists the checkpoint tensors it is made of, joined along dim 0, in `parts`.

    A state is a KV cache array: an op that writes one yields a new version, `base@n`, of the same memory.
    """

    name: str
    shape: Shape
    dtype: DType
    role: Role = Role.TEMP
    parts: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The name of the memory behind a state's versions; the name itself for all others."""
        return self.name.split("@", 1)[0] if self.role is Role.STATE else self.name


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `inputs` may hold None for an optional operand that is absent."""

    kind: str
    outputs: tuple[Value, ...]
    inputs: tuple[Value | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Value:
        """The first output; the only one of most kinds."""
        return self.outputs[0]

    @property
    def reads(self) -> tuple[Value, ...]:
        """The inputs that are present."""
        return tuple(value for value in self.inputs if value is not None)


@dataclass(frozen=True, slots=True)
class Graph:
    """Ops in an order that can be executed. `outputs` are what the host reads."""

    name: str
    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    def each(self, kind: str) -> Iterator[Op]:
        """All ops of one kind, in order."""
        return (op for op in self.ops if op.kind == kind)

    def __str__(self) -> str:
        from tspec.graph.show import show  # show reads this module

        return show(self)
