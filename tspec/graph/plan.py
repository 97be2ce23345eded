"""A plan: the launches of one bucket over static buffers. Data only; an executor of a backend runs it."""

from dataclasses import dataclass
from typing import Any

from tspec.core.dtypes import DType
from tspec.graph.ir import Shape


@dataclass(frozen=True, slots=True)
class Bucket:
    """The padded size that a plan is made for. Written `4x16`."""

    rows: int
    nodes: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.nodes}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """One value's place in the bucket's arena: bytes [offset, offset + size)."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight that a plan reads: the checkpoint tensors `parts`, joined along dim 0, as `shape`.

    `use` says what it is read as, which decides how a backend packs it: "embed" (a table of rows alone), "matrix",
    "gate_up" (a matrix of two halves that are used together), "norm", "bias" or "derived".
    """

    name: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DType
    use: str


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel call. Operands are names of buffers, weights, states or inputs of the plan.

    row_dim   what its rows are: "T", the nodes of the pass; "W", those of a level of a draft's tree; "1", sequences
    """

    number: int
    kind: str
    outputs: tuple[str, ...]
    inputs: tuple[str | None, ...]
    attrs: dict[str, Any]
    row_dim: str
    bytes_moved: int
    flops: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything an executor needs for one bucket.

    inputs   static inputs, filled by the host before each step: name -> (shape, dtype)
    outputs  names of the buffers that the host reads after a step
    states   KV cache arrays, symbolic in "num_blocks": base name -> (shape, dtype)
    """

    bucket: Bucket
    launches: tuple[Launch, ...]
    inputs: dict[str, tuple[tuple[int, ...], DType]]
    outputs: tuple[str, ...]
    buffers: dict[str, Buffer]
    weights: dict[str, WeightSpec]
    states: dict[str, tuple[Shape, DType]]
    arena_bytes: int
