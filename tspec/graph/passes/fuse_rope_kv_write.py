"""Graph pass: from the joined q/k/v rows to rotated queries and written keys and values in one op."""

from typing import NamedTuple

from tspec.graph.ir import Graph, Op, Value
from tspec.graph.rewrite import Rewriter
from tspec.graph.signature import operand


class _Rotated(NamedTuple):
    """A piece of the split that is rotated, maybe normalised before."""

    rope: Op
    norm: Op | None
    piece: Value

    @property
    def ops(self) -> list[Op]:
        return [self.rope] if self.norm is None else [self.norm, self.rope]

    @property
    def scale(self) -> Value | None:
        return None if self.norm is None else operand(self.norm, "weight")


def fuse_rope_kv_write(graph: Graph) -> Graph:
    """Rewrite `q, k, v = split(qkv); rope(norm(q)); kv_write(rope(norm(k)), v)` into `rope_kv_write(qkv)`.

    Both head norms may be absent. Saves three to five launches, and q, k and v once through memory.
    Skips a KV write whose keys and values come from anywhere else, or are read by another op too.
    """
    edit = Rewriter(graph)
    for write in graph.each("kv_write"):
        _fuse(edit, write)
    return edit.done()


def _fuse(edit: Rewriter, write: Op) -> None:
    v = operand(write, "v")
    split = edit.producer(v, "split")
    key = _rotated(edit, edit.producer(operand(write, "k"), "rope"))
    if split is None or key is None or len(split.outputs) != 3 or split.outputs[1:] != (key.piece, v):
        return
    query = _find_query(edit, split.outputs[0])
    if query is None or not _agree(query, key):
        return
    old = [split, *query.ops, *key.ops, write]
    inner = [value for op in old for value in op.outputs if op is not write and op is not query.rope]
    if edit.is_private(inner, old):
        edit.replace(old, _rope_kv_write(split, query, key, write), at=write)


def _rotated(edit: Rewriter, rope: Op | None) -> _Rotated | None:
    if rope is None:
        return None
    x = operand(rope, "x")
    norm = edit.producer(x, "head_norm")
    return _Rotated(rope, norm, x if norm is None else operand(norm, "x"))


def _find_query(edit: Rewriter, piece: Value) -> _Rotated | None:
    """The rotation that the first piece of the split ends in."""
    normed = [op.out for op in edit.readers(piece, "head_norm")]
    for value in [piece, *normed]:
        for rope in edit.readers(value, "rope"):
            return _rotated(edit, rope)
    return None


def _agree(query: _Rotated, key: _Rotated) -> bool:
    """Say whether one op can do both: the same tables, head size and, where there are norms, the same eps."""
    same_rope = query.rope.inputs[1:] == key.rope.inputs[1:] and query.rope.attrs == key.rope.attrs
    if query.norm is None or key.norm is None:
        return same_rope and query.norm is key.norm
    return same_rope and query.norm.attrs == key.norm.attrs


def _rope_kv_write(split: Op, query: _Rotated, key: _Rotated, write: Op) -> Op:
    head_dim = query.rope.attrs["head_dim"]
    q_size, k_size, _ = split.attrs["sizes"]
    attrs = {
        "head_dim": head_dim,
        "num_heads": q_size // head_dim,
        "num_kv_heads": k_size // head_dim,
        "eps": 0.0 if query.norm is None else query.norm.attrs["eps"],
        **write.attrs,
    }
    from_rope = [operand(query.rope, name) for name in ("cos", "sin")]
    caches = [operand(write, name) for name in ("k_cache", "v_cache")]
    place = [operand(query.rope, "depth")]
    place += [operand(write, name) for name in ("block_table", "prefix_len", "num_nodes")]
    inputs = (operand(split, "x"), *from_rope, query.scale, key.scale, *caches, *place)
    return Op("rope_kv_write", (query.rope.out, *write.outputs), inputs, attrs)
