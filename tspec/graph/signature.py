"""What each kind of op takes and gives, as one table; and the unifier that holds an op against its line.

Says nothing of what an op computes: `tspec/kernels/reference` does.
"""

import re
from dataclasses import dataclass

from tspec.core.dtypes import WEIGHT_DTYPES, DType
from tspec.core.errors import ShapeError
from tspec.core.shapes import BLOCK_TOKENS
from tspec.graph.ir import Dim, Op, Shape, Value

# kind: outputs = inputs {attributes}
# `a` is the dtype of activations and `w` that of weights, each the same all over an op. `?` marks an optional
# operand or attribute, `*` any number of operands, `_` any dim; `{head_dim=D}` binds D to the attribute. R is T
# (nodes), W (nodes of a level of a draft's tree) or 1; T may be W, too.
TABLE = """
embed: out[B,T,H]:a = tokens[B,T]:i32 weight[V,H]:w
rms_norm: out[B,R,H]:a = x[B,R,H]:a weight[H]:f32 {eps}
head_norm: out[B,R,Q]:a = x[B,R,Q]:a weight[D]:f32 {eps head_dim=D}
linear: out[B,R,N]:a = x[B,R,K]:a weight[N,K]:w bias?[N]:f32
split: *outs[B,R,_]:a = x[B,R,X]:a {sizes}
rope: out[B,T,Q]:a = x[B,T,Q]:a depth[B,T]:i32 prefix_len[B]:i32 cos[P,D/2]:f32 sin[P,D/2]:f32 {head_dim=D}
kv_write: new_k[CACHE]:w new_v[CACHE]:w = k[B,T,G*D]:a v[B,T,G*D]:a k_cache[CACHE]:w v_cache[CACHE]:w \
    block_table[B,M]:i32 prefix_len[B]:i32 num_nodes[B]:i32 {first_node?}
attention: out[B,T,Q]:a = q[B,T,Q]:a k_cache[CACHE]:w v_cache[CACHE]:w ancestors[B,T]:i64 prefix_len[B]:i32 \
    num_nodes[B]:i32 block_table[B,M]:i32 {head_dim=D num_kv_heads=G scale window first_node? first_slot?}
add: out[B,R,H]:a = a[B,R,H]:a b[B,R,H]:a
silu_mul: out[B,R,I]:a = gate[B,R,I]:a up[B,R,I]:a
last_row: out[B,1,X]:a = x[B,T,X]:a num_nodes[B]:i32
concat: out[B,R,H+G]:a = a[B,R,H]:a b[B,R,G]:a
silu_add: out[B,R,H]:a = x[B,R,H]:a residual[B,R,H]:a
keep_features: new_features[C,BLOCK,F]:a = x[B,T,X]:a path?[B,T]:i32 num_out?[B]:i32 num_nodes[B]:i32 \
    prefix_len[B]:i32 block_table[B,M]:i32 features[C,BLOCK,F]:a {column}
read_features: out[B,T,X]:a = features[C,BLOCK,F]:a depth[B,T]:i32 block_table[B,M]:i32 prefix_len[B]:i32 \
    num_nodes[B]:i32 {column width=X}
top_tokens: tokens[B,R,N]:i32 logprobs[B,R,N]:f32 = logits[B,R,V]:f32 num_nodes[B]:i32 token_ids?[V]:i32 {most=N}
draw_draft: tokens[B,R,N]:i32 logprobs[B,R,N]:f32 law[B,R,V]:f32 = logits[B,R,V]:f32 temperature[B]:f32 seed[B]:i64 \
    prefix_len[B]:i32 num_nodes[B]:i32 token_ids?[V]:i32 {most=N stream offset}
expand_tree: scores[B,R,N]:f32 next_tokens[B,W]:i32 next_from[B,W]:i32 next_scores[B,W]:f32 next_ancestors[B,W]:i64 \
    next_depth[B,W]:i32 = tokens[B,R,N]:i32 logprobs[B,R,N]:f32 row_scores?[B,R]:f32 ancestors?[B,R]:i64 \
    level_nodes[B]:i32 {first_node depth width}
parent_rows: out[B,W,H]:a = x[B,R,H]:a next_from[B,W]:i32 level_nodes[B]:i32 {most}
head_logits: out[B,R,V]:f32 = x[B,R,K]:a weight[V,K]:w bias?[V]:f32
edit_logits: out[B,R,V]:f32 = logits[B,R,V]:f32 edits[B]:i32 penalties[B,3]:f32 counts[B,V]:i32 bias[B,V]:f32 \
    mask[B,R,W]:i32 tokens[B,T]:i32 ancestors[B,T]:i64 num_nodes[B]:i32
find_kept: threshold[B,R]:f32 first_tie[B,R]:i32 log_sum[B,R]:f32 = \
    logits[B,R,V]:f32 temperature[B]:f32 top_k[B]:i32 top_p[B]:f32 min_p[B]:f32 num_nodes[B]:i32
sample: out[B,R]:i32 = logits[B,R,V]:f32 temperature[B]:f32 seed[B]:i64 prefix_len[B]:i32 depth[B,T]:i32 \
    num_nodes[B]:i32 threshold?[B,R]:f32 first_tie?[B,R]:i32
token_logprobs: logprobs[B,R]:f32 top_tokens[B,R,N]:i32 top_logprobs[B,R,N]:f32 = \
    logits[B,R,V]:f32 chosen[B,R]:i32 num_logprobs[B]:i32 num_nodes[B]:i32 num_out?[B]:i32 path?[B,R]:i32 {most=N}
accept_match: out_tokens[B,T]:i32 num_out[B]:i32 path[B,T]:i32 = \
    node_tokens[B,T]:i32 tokens[B,T]:i32 ancestors[B,T]:i64 depth[B,T]:i32 num_nodes[B]:i32
accept_ratio: out_tokens[B,T]:i32 num_out[B]:i32 path[B,T]:i32 = \
    node_tokens[B,T]:i32 tokens[B,T]:i32 ancestors[B,T]:i64 depth[B,T]:i32 num_nodes[B]:i32 prefix_len[B]:i32 \
    logits[B,T,V]:f32 temperature[B]:f32 seed[B]:i64 threshold[B,T]:f32 first_tie[B,T]:i32 log_sum[B,T]:f32 \
    is_sampled[B,T]:i32 draft_logprobs[B,T,Q]:f32 draft_index?[V]:i32
kv_commit: *new_caches[CACHE]:w = \
    path[B,T]:i32 num_out[B]:i32 prefix_len[B]:i32 block_table[B,M]:i32 *caches[CACHE]:w
rope_kv_write: q[B,T,A*D]:a new_k[CACHE]:w new_v[CACHE]:w = \
    qkv[B,T,A*D+2*G*D]:a cos[P,D/2]:f32 sin[P,D/2]:f32 \
    q_norm?[D]:f32 k_norm?[D]:f32 k_cache[CACHE]:w v_cache[CACHE]:w depth[B,T]:i32 block_table[B,M]:i32 \
    prefix_len[B]:i32 num_nodes[B]:i32 {head_dim=D num_heads=A num_kv_heads=G eps first_node?}
rope_attention: out[B,T,A*D]:a new_k[CACHE]:w new_v[CACHE]:w = \
    qkv[B,T,A*D+2*G*D]:a cos[P,D/2]:f32 sin[P,D/2]:f32 \
    q_norm?[D]:f32 k_norm?[D]:f32 k_cache[CACHE]:w v_cache[CACHE]:w ancestors[B,T]:i64 depth[B,T]:i32 \
    block_table[B,M]:i32 prefix_len[B]:i32 num_nodes[B]:i32 \
    {head_dim=D num_heads=A num_kv_heads=G eps scale window first_node? first_slot?}
linear_add: out[B,R,N]:a = x[B,R,K]:a weight[N,K]:w bias?[N]:f32 residual[B,R,N]:a
linear_silu_mul: out[B,R,I]:a = x[B,R,K]:a weight[2*I,K]:w bias?[2*I]:f32
head_sample: out[B,R]:i32 = x[B,R,K]:a weight[V,K]:w bias?[V]:f32 temperature[B]:f32 seed[B]:i64 \
    prefix_len[B]:i32 depth[B,T]:i32 num_nodes[B]:i32
norm_linear: out[B,R,N]:a = x[B,R,K]:a norm[K]:f32 weight[N,K]:w bias?[N]:f32 {eps}
norm_linear_silu_mul: out[B,R,I]:a = x[B,R,K]:a norm[K]:f32 weight[2*I,K]:w bias?[2*I]:f32 {eps}
norm_head_logits: out[B,R,V]:f32 = x[B,R,K]:a norm[K]:f32 weight[V,K]:w bias?[V]:f32 {eps}
norm_head_sample: out[B,R]:i32 = x[B,R,K]:a norm[K]:f32 weight[V,K]:w bias?[V]:f32 temperature[B]:f32 seed[B]:i64 \
    prefix_len[B]:i32 depth[B,T]:i32 num_nodes[B]:i32 {eps}
""".replace("CACHE", f"C,G,{BLOCK_TOKENS},D").replace("BLOCK", str(BLOCK_TOKENS))

_OPERAND = re.compile(r"(\*?)(\w+)(\??)\[([^\]]*)\]:(\w+)")
_FIX = "Check the builder or the graph pass that made this op."
_CLASSES = {"a": WEIGHT_DTYPES, "w": WEIGHT_DTYPES}


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a signature. Dims are names, numbers or sums of products; dtype is a class or a name."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    is_optional: bool
    is_variadic: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """Operands and attributes of one kind. `attrs` maps an attribute to the dim it binds, or to None.

    An attribute in `optional_attrs` may be absent, which is 0.
    """

    kind: str
    outputs: tuple[Operand, ...]
    inputs: tuple[Operand, ...]
    attrs: dict[str, str | None]
    optional_attrs: frozenset[str]


def _parse(line: str) -> Signature:
    kind, rest = line.split(":", 1)
    body, _, attrs = rest.partition("{")
    outputs, inputs = (tuple(map(_operand, _OPERAND.findall(side))) for side in body.split(" = "))
    words = attrs.rstrip("}").split()
    pairs = (word.rstrip("?").partition("=") for word in words)
    optional = frozenset(word.rstrip("?") for word in words if word.endswith("?"))
    return Signature(kind, outputs, inputs, {name: dim or None for name, _, dim in pairs}, optional)


def _operand(match: tuple[str, str, str, str, str]) -> Operand:
    star, name, optional, dims, dtype = match
    return Operand(name, tuple(dims.split(",")), dtype, bool(optional), bool(star))


SIGNATURES = {parsed.kind: parsed for parsed in map(_parse, TABLE.strip().split("\n"))}


def operand(op: Op, name: str) -> Value:
    """Return the operand that the signature of `op` calls `name`; it has to be there."""
    value = optional_operand(op, name)
    assert value is not None, f"{op.kind} {op.out.name} has no {name}"
    return value


def optional_operand(op: Op, name: str) -> Value | None:
    """Return the operand that the signature of `op` calls `name`, or None."""
    signature = SIGNATURES[op.kind]
    for operands, values in ((signature.inputs, op.inputs), (signature.outputs, op.outputs)):
        for place, each in enumerate(operands):
            if each.name == name:
                return values[place]
    raise KeyError(f"{op.kind} has no operand {name}")


def labelled(op: Op) -> list[tuple[Operand, Value | None]]:
    """Pair each operand of `op` with its line in the signature, inputs first.

    Errors: ShapeError for an unknown kind, and for other operands or attributes than the signature's.
    """
    signature = SIGNATURES.get(op.kind)
    if signature is None:
        raise ShapeError("op kind", got=repr(op.kind), need=f"one of {', '.join(SIGNATURES)}", fix=_FIX)
    if not set(signature.attrs) - signature.optional_attrs <= set(op.attrs) <= set(signature.attrs):
        raise ShapeError(
            f"attributes of {op.kind}", got=sorted(op.attrs), need=sorted(signature.attrs), fix=_FIX
        )
    pairs: list[tuple[Operand, Value | None]] = []
    for side, operands, values in (
        ("inputs", signature.inputs, op.inputs),
        ("outputs", signature.outputs, op.outputs),
    ):
        if operands[-1].is_variadic:
            operands = operands + operands[-1:] * (len(values) - len(operands))
        if len(operands) != len(values):
            raise ShapeError(f"{side} of {op.kind}", got=len(values), need=len(operands), fix=_FIX)
        pairs += zip(operands, values, strict=True)
    return pairs


def unify(op: Op) -> dict[str, Dim]:
    """Hold `op` against its signature and return what each dim name stands for.

    Errors: ShapeError naming the first operand that disagrees with those before it.
    """
    pairs = labelled(op)
    bound: dict[str, Dim] = {}
    for attr, bound_name in SIGNATURES[op.kind].attrs.items():
        if bound_name is not None:
            bound[bound_name] = op.attrs[attr]
    for each, value in pairs:
        if value is not None and len(value.shape) == len(each.dims):
            for name, dim in zip(each.dims, value.shape, strict=True):
                if name.isidentifier() and name != "_":
                    bound.setdefault(name, dim)
    dtypes: dict[str, DType] = {}
    for each, value in pairs:
        _check_operand(op, each, value, bound, dtypes)
    return bound


def _check_operand(
    op: Op, each: Operand, value: Value | None, bound: dict[str, Dim], dtypes: dict[str, DType]
) -> None:
    if value is None:
        if not each.is_optional:
            raise ShapeError(
                f"operand {each.name} of {op.kind} {op.out.name}", got="none", need="a value", fix=_FIX
            )
        return
    shape = value.shape if len(value.shape) == len(each.dims) else (None,) * len(each.dims)
    need = tuple(
        dim if name == "_" else _evaluate(name, bound) for name, dim in zip(each.dims, shape, strict=True)
    )
    if each.dtype in _CLASSES and value.dtype in _CLASSES[each.dtype]:
        dtype = dtypes.setdefault(each.dtype, value.dtype).short
    else:
        dtype = dtypes[each.dtype].short if each.dtype in dtypes else each.dtype
    if value.shape != need or value.dtype.short != dtype:
        raise ShapeError(
            f"operand {each.name} of {op.kind} {op.out.name}",
            got=describe(value.shape, value.dtype.short),
            need=describe(need, {"a": "float", "w": "float"}.get(dtype, dtype)),
            fix=_FIX,
        )


def _evaluate(expression: str, bound: dict[str, Dim]) -> Dim:
    """`name` -> what it is bound to; `A*D+2*G*D` and `D/2` -> a number."""
    if expression in bound:
        return bound[expression]
    total = 0
    for term in expression.split("+"):
        product, _, divisor = term.partition("/")
        number = 1
        for factor in product.split("*"):
            dim = bound.get(factor, factor)
            if not str(dim).isdigit():
                return expression
            number *= int(dim)
        total += number // int(divisor or 1)
    return total


def describe(shape: Shape | tuple[Dim | None, ...], dtype: str) -> str:
    """`f32[B, T, 64]`."""
    return f"{dtype}[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"
