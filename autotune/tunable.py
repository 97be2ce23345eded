"""The ops of a plan that can be tuned: its launches by what they are tuned as, their shape and their dtype."""

from collections.abc import Iterator
from dataclasses import dataclass

from tspec.core.dtypes import DType
from tspec.graph.plan import Launch, Plan, WeightSpec
from tspec.kernels.tuned_ops import ATTENTION, PRODUCT_OPS, tuning_op

MATRICES = ("matrix", "gate_up")


@dataclass(frozen=True, slots=True)
class TunableOp:
    """One op and shape. `kind` is that of its first launch, which `op` may stand for others than."""

    op: str
    kind: str
    dtype: DType
    shape: tuple[tuple[str, int], ...]

    @property
    def is_attention(self) -> bool:
        """Whether it is attention; else it is a product."""
        return self.op == ATTENTION

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={size}" for name, size in self.shape)
        return f"{self.op} {sizes} {self.dtype.value}"


def tunable_ops(plan: Plan) -> dict[TunableOp, list[int]]:
    """The ops of `plan` and the numbers of their launches, those that move the most bytes first."""
    found: dict[TunableOp, list[int]] = {}
    for op, launch in _tunable_launches(plan):
        found.setdefault(op, []).append(launch.number)
    moved = {launch.number: launch.bytes_moved for launch in plan.launches}
    order = sorted(found, key=lambda op: -sum(moved[number] for number in found[op]))
    return {op: found[op] for op in order}


def _tunable_launches(plan: Plan) -> Iterator[tuple[TunableOp, Launch]]:
    for launch in plan.launches:
        if launch.kind == ATTENTION:
            (_, num_kv_heads, _, head_dim), dtype = next(
                plan.states[str(name)] for name in launch.inputs if name in plan.states
            )
            heads = {"num_heads": launch.attrs["num_heads"], "num_kv_heads": int(num_kv_heads)}
            yield _op(launch, dtype, **heads, head_dim=int(head_dim)), launch
        elif tuning_op(launch.kind) in PRODUCT_OPS and (weight := _matrix(plan, launch)) is not None:
            outputs, k = weight.shape
            n = outputs // (2 if weight.use == "gate_up" else 1)
            yield _op(launch, weight.dtype, n=n, k=k), launch


def _op(launch: Launch, dtype: DType, **shape: int) -> TunableOp:
    return TunableOp(tuning_op(launch.kind), launch.kind, dtype, tuple(sorted(shape.items())))


def _matrix(plan: Plan, launch: Launch) -> WeightSpec | None:
    read = (plan.weights[str(name)] for name in launch.inputs if name in plan.weights)
    return next((spec for spec in read if spec.use in MATRICES), None)
