"""Builds graphs: one method a kind of op, which infers the outputs and checks the op. Fuses nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tspec.core.dtypes import DType
from tspec.core.shapes import BLOCK_TOKENS
from tspec.graph.ir import FEATURES, Graph, Op, Role, Shape, Value
from tspec.graph.ops import check_op
from tspec.graph.static_inputs import (
    ANCESTORS,
    BLOCK_TABLE,
    DEPTH,
    DRAFT_PREFIX,
    EDITS,
    F32,
    I32,
    I64,
    IS_SAMPLED,
    LEVEL_NODES,
    MIN_P,
    NUM_LOGPROBS,
    NUM_NODES,
    PENALTIES,
    PREFIX_LEN,
    SEED,
    STATIC_INPUTS,
    TEMPERATURE,
    TOKENS,
    TOP_K,
    TOP_P,
    bias_input,
    counts_input,
    draft_logprobs_input,
    mask_input,
)


def weight(name: str, shape: Shape, dtype: DType) -> Value:
    """A weight that is one tensor of the checkpoint."""
    return Value(name, shape, dtype, Role.WEIGHT, parts=(name,))


def derived(name: str, shape: Shape) -> Value:
    """A float32 table that is computed when the weights load, and is in no checkpoint."""
    return Value(name, shape, F32, Role.WEIGHT)


def next_version(state: Value) -> Value:
    """The value that a KV cache array becomes when an op writes it: `k_cache.0@1` after `k_cache.0`."""
    _, _, version = state.name.partition("@")
    return Value(f"{state.base}@{int(version or 0) + 1}", state.shape, state.dtype, Role.STATE)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The rows that ops are written for: the nodes of a pass, or of a level of a draft's tree.

    dim         symbolic name of how many a sequence has at most: "T", or "W" for a level
    first_node  nodes of the same tree that levels before this one hold
    """

    tokens: Value = TOKENS
    ancestors: Value = ANCESTORS
    depth: Value = DEPTH
    num_nodes: Value = NUM_NODES
    prefix_len: Value = PREFIX_LEN
    dim: str = "T"
    first_node: int = 0


def _verdict() -> list[Value]:
    tree = ("B", "T")
    return [Value("out_tokens", tree, I32), Value("num_out", ("B",), I32), Value("path", tree, I32)]


class GraphBuilder:
    """Collects ops in order. Each method takes the name of its result first, as in `layers.3.q`.

    nodes       what the ops are written for from now on
    scope       goes before the names that `at` makes: layers of each level of a draft's tree have names of their own
    first_slot  slots before it hold nothing, and attention leaves them out
    """

    def __init__(self, name: str, *, first_slot: int = 0) -> None:
        self.name = name
        self.nodes = Nodes()
        self.scope = ""
        self.ops: list[Op] = []
        self._caches: list[Value] = []
        self._features: Value | None = None
        self._first_slot = first_slot

    def at(self, name: str) -> str:
        """A name in the current scope."""
        return self.scope + name

    def build(self, outputs: Sequence[Value]) -> Graph:
        """Return the graph whose results the host reads are `outputs`."""
        read = dict.fromkeys(value for op in self.ops for value in op.reads if value.role is Role.INPUT)
        more = tuple(value for value in read if value not in STATIC_INPUTS)
        return Graph(self.name, tuple(self.ops), (*STATIC_INPUTS, *more), tuple(outputs))

    def add_caches(self, layer: int, num_kv_heads: int, head_dim: int, dtype: DType) -> None:
        """Declare the KV cache of a layer; of one that has it, nothing."""
        if 2 * layer < len(self._caches):
            return
        shape = ("num_blocks", num_kv_heads, BLOCK_TOKENS, head_dim)
        self._caches += [Value(f"{side}_cache.{layer}", shape, dtype, Role.STATE) for side in "kv"]

    def embed(self, name: str, table: Value, dtype: DType = F32) -> Value:
        """Look up the row of each node's token."""
        out = Value(name, ("B", self.nodes.dim, table.shape[1]), dtype)
        return self._add("embed", out, self.nodes.tokens, table)

    def rms_norm(self, name: str, x: Value, scale: Value, eps: float) -> Value:
        """Normalise each row."""
        return self._add("rms_norm", Value(name, x.shape, x.dtype), x, scale, eps=eps)

    def head_norm(self, name: str, x: Value, scale: Value, eps: float) -> Value:
        """Normalise each head of each row."""
        return self._add(
            "head_norm", Value(name, x.shape, x.dtype), x, scale, eps=eps, head_dim=scale.shape[0]
        )

    def linear(self, name: str, x: Value, matrix: Value, bias: Value | None = None) -> Value:
        """Multiply each row by `matrix` [N, K], and add `bias` [N]."""
        return self._add("linear", Value(name, (*x.shape[:-1], matrix.shape[0]), x.dtype), x, matrix, bias)

    def split(self, names: Sequence[str], x: Value, sizes: Sequence[int]) -> tuple[Value, ...]:
        """Cut each row into pieces of `sizes`."""
        outs = [Value(name, (*x.shape[:-1], size), x.dtype) for name, size in zip(names, sizes, strict=True)]
        return self._add_many("split", outs, [x], sizes=tuple(sizes))

    def rope(self, name: str, x: Value, cos: Value, sin: Value, head_dim: int) -> Value:
        """Rotate each head by its node's position, `prefix_len` + depth."""
        place = (self.nodes.depth, self.nodes.prefix_len)
        return self._add("rope", Value(name, x.shape, x.dtype), x, *place, cos, sin, head_dim=head_dim)

    def kv_write(self, layer: int, k: Value, v: Value) -> None:
        """Store the nodes' keys and values behind the committed ones."""
        caches = self._caches[2 * layer : 2 * layer + 2]
        written = [next_version(cache) for cache in caches]
        place = [BLOCK_TABLE, self.nodes.prefix_len, self.nodes.num_nodes]
        self._add_many("kv_write", written, [k, v, *caches, *place], **self._first_node())
        self._caches[2 * layer : 2 * layer + 2] = written

    def attention(
        self,
        name: str,
        layer: int,
        q: Value,
        *,
        head_dim: int,
        num_kv_heads: int,
        scale: float,
        window: int | None,
    ) -> Value:
        """Let each node attend to the committed slots and to its ancestors and itself."""
        caches, nodes = self._caches[2 * layer : 2 * layer + 2], self.nodes
        inputs = [q, *caches, nodes.ancestors, nodes.prefix_len, nodes.num_nodes, BLOCK_TABLE]
        attrs = {"head_dim": head_dim, "num_kv_heads": num_kv_heads, "scale": scale, "window": window}
        attrs |= self._first_node() | ({"first_slot": self._first_slot} if self._first_slot else {})
        return self._add("attention", Value(name, q.shape, q.dtype), *inputs, **attrs)

    def add(self, name: str, a: Value, b: Value) -> Value:
        """Add elementwise; a residual connection gives the residual as `b`."""
        return self._add("add", Value(name, a.shape, a.dtype), a, b)

    def silu_mul(self, name: str, gate: Value, up: Value) -> Value:
        """silu(gate) * up."""
        return self._add("silu_mul", Value(name, gate.shape, gate.dtype), gate, up)

    def last_row(self, name: str, x: Value) -> Value:
        """Keep the row of each sequence's last node."""
        return self._add("last_row", Value(name, ("B", 1, *x.shape[2:]), x.dtype), x, NUM_NODES)

    def concat(self, name: str, a: Value, b: Value) -> Value:
        """The elements of `a`, then those of `b`, in each row."""
        shape = (*a.shape[:-1], int(a.shape[-1]) + int(b.shape[-1]))
        return self._add("concat", Value(name, shape, a.dtype), a, b)

    def silu_add(self, name: str, x: Value, residual: Value) -> Value:
        """silu(x) + residual."""
        return self._add("silu_add", Value(name, x.shape, x.dtype), x, residual)

    def keep_features(
        self, x: Value, column: int, width: int, path: Value | None = None, num_out: Value | None = None
    ) -> None:
        """Store the rows of committed nodes for a proposer, in columns from `column` on of `width`."""
        features = self._features or self._feature_state(width, x.dtype)
        self._features = next_version(features)
        place = (NUM_NODES, PREFIX_LEN, BLOCK_TABLE)
        self._add("keep_features", self._features, x, path, num_out, *place, features, column=column)

    def read_features(self, name: str, column: int, width: int, total: int, dtype: DType = F32) -> Value:
        """`width` of the `total` columns of the features of the position before each node's."""
        out, features = Value(name, ("B", "T", width), dtype), self._feature_state(total, dtype)
        place = (DEPTH, BLOCK_TABLE, PREFIX_LEN, NUM_NODES)
        return self._add("read_features", out, features, *place, column=column, width=width)

    @staticmethod
    def _feature_state(width: int, dtype: DType) -> Value:
        return Value(FEATURES, ("num_blocks", BLOCK_TOKENS, width), dtype, Role.STATE)

    def _first_node(self) -> dict[str, int]:
        return {"first_node": self.nodes.first_node} if self.nodes.first_node else {}

    def top_tokens(self, name: str, logits: Value, most: int, token_ids: Value | None) -> tuple[Value, Value]:
        """The `most` likeliest tokens of each row, and their log-probabilities, the likeliest first."""
        shape = (*logits.shape[:-1], most)
        outs = [Value(f"{name}.tokens", shape, I32), Value(f"{name}.logprobs", shape, F32)]
        inputs = (logits, self._row_nodes(logits), token_ids)
        tokens, logprobs = self._add_many("top_tokens", outs, inputs, most=most)
        return tokens, logprobs

    def draw_draft(
        self, name: str, logits: Value, token_ids: Value | None, *, stream: int, offset: int
    ) -> tuple[Value, Value, Value]:
        """A token drawn from each row, its log-probability, and the law that it was drawn from."""
        shape = (*logits.shape[:-1], 1)
        outs = [Value(f"{name}.tokens", shape, I32), Value(f"{name}.logprobs", shape, F32)]
        outs.append(Value(f"{name}.law", logits.shape, F32))
        inputs = (logits, TEMPERATURE, SEED, DRAFT_PREFIX, self._row_nodes(logits), token_ids)
        attrs = {"most": 1, "stream": stream, "offset": offset}
        tokens, logprobs, law = self._add_many("draw_draft", outs, inputs, **attrs)
        return tokens, logprobs, law

    def expand_tree(
        self, name: str, tokens: Value, logprobs: Value, row_scores: Value | None, width: int
    ) -> tuple[Value, ...]:
        """Make the best candidates below the current level the next one: scores, then `next_…` (see the reference).

        The level is that of `self.nodes`, or the root alone while these are the nodes of the pass.
        """
        is_root = self.nodes.dim == "T"
        depth = 0 if is_root else self.nodes.first_node // width + 1
        level = ("B", "W")
        outs = [
            Value(f"{name}.scores", logprobs.shape, F32),
            Value(f"{name}.next_tokens", level, I32),
            Value(f"{name}.next_from", level, I32),
            Value(f"{name}.next_scores", level, F32),
            Value(f"{name}.next_ancestors", level, I64),
            Value(f"{name}.next_depth", level, I32),
        ]
        inputs = (tokens, logprobs, row_scores, None if is_root else self.nodes.ancestors, LEVEL_NODES)
        attrs = {"first_node": depth * width, "depth": depth, "width": width}
        return self._add_many("expand_tree", outs, inputs, **attrs)

    def parent_rows(self, name: str, x: Value, next_from: Value, most: int) -> Value:
        """The row of `x` that each node of the next level hangs on."""
        out = Value(name, ("B", "W", x.shape[2]), x.dtype)
        return self._add("parent_rows", out, x, next_from, LEVEL_NODES, most=most)

    def _row_nodes(self, rows: Value) -> Value:
        """How many of the rows a sequence has are live; of one row a sequence, whether it is."""
        return LEVEL_NODES if rows.shape[1] == "W" else NUM_NODES

    def head_logits(self, name: str, x: Value, matrix: Value, bias: Value | None = None) -> Value:
        """`linear` into float32, whatever the rows are in: logits are never rounded."""
        return self._add("head_logits", Value(name, (*x.shape[:-1], matrix.shape[0]), F32), x, matrix, bias)

    def edit_logits(self, name: str, logits: Value) -> Value:
        """Bias, penalties and masks of each request, with the counts of the path above each node."""
        _, rows, vocab = logits.shape
        assert isinstance(vocab, int), vocab
        tables = (counts_input(vocab), bias_input(vocab), mask_input(rows, vocab))
        inputs = (logits, EDITS, PENALTIES, *tables, TOKENS, ANCESTORS, NUM_NODES)
        return self._add("edit_logits", Value(name, logits.shape, F32), *inputs)

    def find_kept(self, logits: Value) -> tuple[Value, ...]:
        """What top-k, top-p and min-p keep of each row: `threshold`, `first_tie`, `log_sum`."""
        rows = logits.shape[:-1]
        outs = [Value("threshold", rows, F32), Value("first_tie", rows, I32), Value("log_sum", rows, F32)]
        return self._add_many("find_kept", outs, [logits, TEMPERATURE, TOP_K, TOP_P, MIN_P, NUM_NODES])

    def sample(
        self, name: str, logits: Value, threshold: Value | None = None, first_tie: Value | None = None
    ) -> Value:
        """The target's own token after each row, out of what is kept; the greatest where temperature is 0."""
        inputs = (logits, TEMPERATURE, SEED, PREFIX_LEN, DEPTH, NUM_NODES, threshold, first_tie)
        return self._add("sample", Value(name, logits.shape[:-1], I32), *inputs)

    def token_logprobs(
        self,
        logits: Value,
        chosen: Value,
        most: int,
        num_out: Value | None = None,
        path: Value | None = None,
    ) -> tuple[Value, ...]:
        """Log-probabilities of `chosen` and of the `most` likeliest tokens: `logprobs`, `top_tokens`, `top_logprobs`.

        Row j of `chosen` was chosen after node j; with `path` after the j-th node of the accepted path.
        """
        rows = logits.shape[:-1]
        outs = [Value("logprobs", rows, F32), Value("top_tokens", (*rows, most), I32)]
        outs.append(Value("top_logprobs", (*rows, most), F32))
        inputs = (logits, chosen, NUM_LOGPROBS, NUM_NODES, num_out, path)
        return self._add_many("token_logprobs", outs, inputs, most=most)

    def accept_match(self, node_tokens: Value) -> tuple[Value, ...]:
        """Walk down from the root while the target's token is a child: `out_tokens`, `num_out`, `path`."""
        return self._add_many("accept_match", _verdict(), [node_tokens, TOKENS, ANCESTORS, DEPTH, NUM_NODES])

    def accept_ratio(
        self,
        node_tokens: Value,
        logits: Value,
        kept: Sequence[Value],
        draft_vocab: int,
        draft_index: Value | None,
    ) -> tuple[Value, ...]:
        """Walk down by rejection sampling where children were drawn: `out_tokens`, `num_out`, `path`."""
        tree = (node_tokens, TOKENS, ANCESTORS, DEPTH, NUM_NODES, PREFIX_LEN)
        draft = (IS_SAMPLED, draft_logprobs_input(draft_vocab), draft_index)
        return self._add_many("accept_ratio", _verdict(), [*tree, logits, TEMPERATURE, SEED, *kept, *draft])

    def kv_commit(self, path: Value, num_out: Value) -> None:
        """Move the accepted nodes' keys and values of every layer to consecutive slots."""
        written = [next_version(cache) for cache in self._caches]
        self._add_many("kv_commit", written, [path, num_out, PREFIX_LEN, BLOCK_TABLE, *self._caches])
        self._caches = written

    def _add(self, kind: str, out: Value, *inputs: Value | None, **attrs: Any) -> Value:
        return self._add_many(kind, [out], inputs, **attrs)[0]

    def _add_many(
        self, kind: str, outs: Sequence[Value], inputs: Sequence[Value | None], **attrs: Any
    ) -> tuple[Value, ...]:
        op = Op(kind, tuple(outs), tuple(inputs), attrs)
        check_op(op)
        self.ops.append(op)
        return op.outputs
