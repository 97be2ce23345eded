"""The registry of op kinds: each with signature, check, cost, and whether it acts on each row alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tspec.core.errors import ShapeError
from tspec.graph.cost import COSTS, Cost, operand_bytes
from tspec.graph.ir import Dim, Op, Role
from tspec.graph.signature import SIGNATURES, Signature, unify

Rule = Callable[[Op, dict[str, Dim]], tuple[object, object] | None]
"""Returns (got, need) where an op breaks a rule that its signature cannot state, else None."""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One kind of op. `is_row_wise`: row r of dim 1 of its outputs depends on row r of its inputs alone."""

    kind: str
    signature: Signature
    rule: Rule | None
    is_row_wise: bool

    def check(self, op: Op) -> None:
        """Raise ShapeError naming the operand that disagrees with the others."""
        bound = unify(op)
        broken = self.rule(op, bound) if self.rule else None
        if broken is not None:
            got, need = broken
            fix = "Check the builder or the graph pass that made this op."
            raise ShapeError(f"operands of {op.kind} {op.out.name}", got=got, need=need, fix=fix)

    def cost(self, op: Op, dims: Mapping[str, int], context: int = 0) -> Cost:
        """Return bytes and flops, with `dims` for the symbolic dims and `context` tokens in the KV cache."""
        if self.kind in COSTS:
            return COSTS[self.kind](op, dims, context)
        return Cost(operand_bytes(op, dims), 0)


def _heads_divide(op: Op, bound: dict[str, Dim]) -> tuple[object, object] | None:
    width, head_dim = bound["Q"], op.attrs["head_dim"]
    whole = head_dim * op.attrs.get("num_kv_heads", 1)
    return None if isinstance(width, int) and width % whole == 0 else (width, f"a multiple of {whole}")


def _sizes_match(op: Op, bound: dict[str, Dim]) -> tuple[object, object] | None:
    sizes = tuple(op.attrs["sizes"])
    widths = tuple(value.shape[-1] for value in op.outputs)
    if widths != sizes:
        return widths, sizes
    return None if sum(sizes) == bound["X"] else (f"sizes {sizes}", f"a sum of {bound['X']}")


def _versions_match(op: Op, bound: dict[str, Dim]) -> tuple[object, object] | None:
    read = [value.base for value in op.reads if value.role is Role.STATE]
    written = [value.base for value in op.outputs if value.role is Role.STATE]
    return None if read == written else (written, read)


_RULES: dict[str, Rule] = {
    "head_norm": _heads_divide,
    "rope": _heads_divide,
    "attention": _heads_divide,
    "split": _sizes_match,
    "kv_write": _versions_match,
    "rope_kv_write": _versions_match,
    "rope_attention": _versions_match,
    "kv_commit": _versions_match,
    "keep_features": _versions_match,
}
_ROW_WISE = frozenset(
    {"rms_norm", "head_norm", "linear", "split", "add", "silu_mul", "head_logits", "concat", "silu_add"}
    | {"linear_add", "linear_silu_mul", "norm_linear", "norm_linear_silu_mul", "norm_head_logits"}
)

OPS = {
    kind: OpSpec(kind, signature, _RULES.get(kind), kind in _ROW_WISE)
    for kind, signature in SIGNATURES.items()
}


def check_op(op: Op) -> None:
    """Raise ShapeError unless `op` is of a known kind and its operands fit each other."""
    if op.kind not in OPS:
        raise ShapeError(
            "op kind", got=repr(op.kind), need=f"one of {', '.join(OPS)}", fix="Register the kind."
        )
    OPS[op.kind].check(op)
