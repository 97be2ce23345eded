"""What an op moves and computes: bytes and flops, counted from shapes. Each weight counts once a launch."""

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import NamedTuple

from tspec.graph.ir import Op, Role, Shape, Value
from tspec.graph.signature import operand, optional_operand

Dims = Mapping[str, int]


class Cost(NamedTuple):
    """Bytes read and written, and floating point operations, of one launch."""

    bytes_moved: int
    flops: int


def bind(shape: Shape, dims: Dims) -> tuple[int, ...]:
    """Put numbers for the symbolic dims of a shape."""
    return tuple(dim if isinstance(dim, int) else dims[dim] for dim in shape)


def value_bytes(value: Value, dims: Dims) -> int:
    """Size of a whole value."""
    return prod(bind(value.shape, dims)) * value.dtype.itemsize_bytes


def operand_bytes(op: Op, dims: Dims, *, without: Iterable[str] = ()) -> int:
    """Bytes of all operands but KV caches and the weights named in `without` by their label."""
    left_out = {operand(op, name).name for name in without}
    values = {value.name: value for value in (*op.outputs, *op.reads)}
    return sum(
        value_bytes(value, dims)
        for value in values.values()
        if value.role is not Role.STATE and value.name not in left_out
    )


def _embed(op: Op, dims: Dims, context: int) -> Cost:
    row_reads = prod(bind(op.out.shape, dims)) * operand(op, "weight").dtype.itemsize_bytes
    return Cost(operand_bytes(op, dims, without=["weight"]) + row_reads, 0)


def _matmul(op: Op, dims: Dims, context: int) -> Cost:
    rows = prod(bind(operand(op, "x").shape[:-1], dims))
    return Cost(operand_bytes(op, dims), 2 * rows * prod(bind(operand(op, "weight").shape, dims)))


def _norm(op: Op, dims: Dims, context: int) -> Cost:
    return Cost(operand_bytes(op, dims), 4 * prod(bind(operand(op, "x").shape, dims)))


def _rope(op: Op, dims: Dims, context: int) -> Cost:
    elements = prod(bind(op.out.shape, dims))
    return Cost(operand_bytes(op, dims, without=["cos", "sin"]) + _table_reads(op, dims), 3 * elements)


def _table_reads(op: Op, dims: Dims) -> int:
    """Bytes of the rows of both rotary tables that one launch looks up: one row a node."""
    nodes = prod(bind(operand(op, "depth").shape, dims))
    cos = operand(op, "cos")
    return 2 * nodes * bind(cos.shape, dims)[1] * cos.dtype.itemsize_bytes


def _kv_rows(cache: Value, rows: int) -> int:
    """Bytes of `rows` slots of one KV cache array."""
    _, heads, _, head_dim = cache.shape
    return rows * int(heads) * int(head_dim) * cache.dtype.itemsize_bytes


def _kv_write(op: Op, dims: Dims, context: int) -> Cost:
    written = 2 * _kv_rows(operand(op, "k_cache"), prod(bind(operand(op, "k").shape[:-1], dims)))
    return Cost(operand_bytes(op, dims) + written, 0)


def _rope_kv_write(op: Op, dims: Dims, context: int) -> Cost:
    written = 2 * _kv_rows(operand(op, "k_cache"), prod(bind(operand(op, "depth").shape, dims)))
    moved = operand_bytes(op, dims, without=["cos", "sin"]) + _table_reads(op, dims) + written
    per_element = 3 if optional_operand(op, "q_norm") is None else 7
    return Cost(moved, per_element * prod(bind(operand(op, "qkv").shape, dims)))


def _attention(op: Op, dims: Dims, context: int) -> Cost:
    """Each sequence's keys and values are read once, whatever the number of its nodes."""
    seen = _num_nodes(op, dims) + _num_before(op, context)
    read = 2 * _kv_rows(operand(op, "k_cache"), dims["B"] * seen)
    return Cost(operand_bytes(op, dims) + read, 4 * prod(bind(op.out.shape, dims)) * seen)


def _rope_attention(op: Op, dims: Dims, context: int) -> Cost:
    """Both at once: q and the new keys and values are not read again."""
    before = _num_before(op, context)
    seen = _num_nodes(op, dims) + before
    read = 2 * _kv_rows(operand(op, "k_cache"), dims["B"] * before)
    rotated = _rope_kv_write(op, dims, context)
    return Cost(rotated.bytes_moved + read, rotated.flops + 4 * prod(bind(op.out.shape, dims)) * seen)


def _num_nodes(op: Op, dims: Dims) -> int:
    return bind(operand(op, "ancestors").shape, dims)[1]


def _num_before(op: Op, context: int) -> int:
    """Slots before the op's own nodes that it reads."""
    window = op.attrs["window"]
    return op.attrs.get("first_node", 0) + (context if window is None else min(context, window))


def _last_row(op: Op, dims: Dims, context: int) -> Cost:
    return Cost(2 * value_bytes(op.out, dims), 0)


def _features(op: Op, dims: Dims, context: int) -> Cost:
    """Each row once in, once out; most rows of a candidate tree are not kept, and are not read either."""
    rows = op.inputs[0] if op.kind == "keep_features" else op.out
    assert rows is not None
    return Cost(2 * value_bytes(rows, dims), 0)


def _kv_commit(op: Op, dims: Dims, context: int) -> Cost:
    """The most that can move: every node but the root, in every cache. A chain moves nothing."""
    rows = dims["B"] * (dims["T"] - 1)
    moved = sum(2 * _kv_rows(cache, rows) for cache in op.outputs)
    return Cost(operand_bytes(op, dims) + moved, 0)


COSTS: dict[str, Callable[[Op, Dims, int], Cost]] = {
    "embed": _embed,
    "linear": _matmul,
    "linear_add": _matmul,
    "linear_silu_mul": _matmul,
    "head_logits": _matmul,
    "head_sample": _matmul,
    "norm_linear": _matmul,
    "norm_linear_silu_mul": _matmul,
    "norm_head_logits": _matmul,
    "norm_head_sample": _matmul,
    "rms_norm": _norm,
    "head_norm": _norm,
    "rope": _rope,
    "kv_write": _kv_write,
    "rope_kv_write": _rope_kv_write,
    "attention": _attention,
    "rope_attention": _rope_attention,
    "last_row": _last_row,
    "keep_features": _features,
    "read_features": _features,
    "kv_commit": _kv_commit,
}
"""Kinds that are not here read and write their operands once, and compute next to nothing."""
