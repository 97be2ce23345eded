"""Draft plans by hand: one graph from the chain of committed tokens to the levels of a tree, and what fills its inputs.

`tree_graph` is a small llama that grows a tree of the likeliest tokens; `head_graph` is a head over features of a
target that draws a chain, and has every op that only heads have. Both read the target's cache layout and no checkpoint.
"""

from collections.abc import Callable

import numpy as np
import torch
from support.graphs import tiny_config

from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.core.noise import draft_stream
from tspec.core.shapes import BLOCK_TOKENS
from tspec.graph.builder import GraphBuilder, Nodes, derived, weight
from tspec.graph.ir import Graph, Role, Value
from tspec.graph.static_inputs import DRAFT_PREFIX, I32, LEVEL_NODES

LEVELS = 3
NUM_BLOCKS, MAX_MODEL_LEN = 12, 128
F32 = DType.FLOAT32


def small_config(dtype: DType = F32) -> ModelConfig:
    """One layer, two heads of 8 over one KV head, 40 tokens."""
    return tiny_config(
        hidden_size=16,
        intermediate_size=20,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        dtype=dtype,
    )


def tree_graph(dtype: DType = F32, width: int = 3, window: int | None = None) -> Graph:
    """Take in the chain, then grow LEVELS levels of `width` nodes. Outputs: scores and the next level of each."""
    config = small_config(dtype)
    build = GraphBuilder("tree")
    hidden = build.last_row("last", _decode(build, config, "chain", window=window))
    outputs, level = _grow(build, config, "root", hidden, None, width)
    for number in range(LEVELS):
        tokens, _, scores, ancestors, depth = level
        build.nodes = Nodes(tokens, ancestors, depth, LEVEL_NODES, DRAFT_PREFIX, "W", number * width)
        hidden = _decode(build, config, f"level.{number}", window=window)
        more, level = _grow(build, config, f"level.{number}", hidden, scores, width)
        outputs += more
    return build.build(outputs)


def head_graph(dtype: DType = F32) -> Graph:
    """A chain of drawn tokens below features of the target; the draft's vocabulary is half of the target's."""
    config = small_config(dtype)
    hidden_size, vocab = config.hidden_size, config.vocab_size // 2
    build = GraphBuilder("head", first_slot=1)
    token_ids = Value("token_ids", (vocab,), I32, Role.WEIGHT)
    lm_head = weight("head.weight", (vocab, hidden_size), dtype)
    features = build.read_features("features", 0, hidden_size, 2 * hidden_size, dtype)
    hidden = build.last_row("last", _decode(build, config, "chain", features=features))
    outputs: list[Value] = []
    scores = None
    for number in range(LEVELS):
        block = build.linear(f"{number}.block", hidden, _matrix("block", hidden_size, hidden_size, dtype))
        logits = build.head_logits(
            f"{number}.logits", build.silu_add(f"{number}.silu", block, hidden), lm_head
        )
        drawn = build.draw_draft(
            f"{number}.drawn", logits, token_ids, stream=draft_stream(number), offset=number
        )
        _, *level = build.expand_tree(f"{number}.tree", *drawn[:2], scores, 1)
        outputs += [*drawn, level[0]]
        tokens, next_from, scores, ancestors, depth = level
        parents = build.parent_rows(f"{number}.parents", hidden, next_from, 1)
        build.nodes = Nodes(tokens, ancestors, depth, LEVEL_NODES, DRAFT_PREFIX, "W", number)
        hidden = _decode(build, config, f"level.{number}", features=parents)
    return build.build([*outputs, hidden])


def keep_graph(dtype: DType = F32) -> Graph:
    """Two thirds of the features of a chain of committed tokens."""
    config = small_config(dtype)
    build = GraphBuilder("keep")
    x = build.embed("embed", _embedding(config), dtype)
    build.keep_features(x, 0, 3 * config.hidden_size)
    build.keep_features(build.silu_add("more", x, x), 2 * config.hidden_size, 3 * config.hidden_size)
    return build.build([])


def _embedding(config: ModelConfig) -> Value:
    return weight("embed.weight", (config.vocab_size, config.hidden_size), config.dtype)


def _matrix(name: str, outputs: int, columns: int, dtype: DType) -> Value:
    return weight(f"{name}.weight", (outputs, columns), dtype)


def _decode(
    build: GraphBuilder,
    config: ModelConfig,
    at: str,
    window: int | None = None,
    features: Value | None = None,
) -> Value:
    """Embed the nodes, join them with `features` where there are some, and run one layer."""
    size, dtype, eps = config.hidden_size, config.dtype, config.rms_eps

    def norm(name: str, x: Value) -> Value:
        return build.rms_norm(f"{at}.{name}", x, weight(f"{name}.weight", (size,), F32), eps)

    def linear(name: str, x: Value, outputs: int) -> Value:
        return build.linear(f"{at}.{name}", x, _matrix(name, outputs, int(x.shape[-1]), dtype))

    hidden = build.embed(f"{at}.embed", _embedding(config), dtype)
    if features is not None:
        joined = build.concat(f"{at}.joined", norm("embed_norm", hidden), norm("feature_norm", features))
        hidden = linear("fc", joined, size)
    attended = linear("o", _attend(build, config, at, norm("attn_norm", hidden), linear, window), size)
    hidden = build.add(f"{at}.attn", attended, hidden)
    x = norm("mlp_norm", hidden)
    gate, up = (linear(name, x, config.intermediate_size) for name in ("gate_proj", "up_proj"))
    down = linear("down", build.silu_mul(f"{at}.act", gate, up), size)
    return build.add(f"{at}.out", down, hidden)


def _attend(
    build: GraphBuilder,
    config: ModelConfig,
    at: str,
    x: Value,
    linear: Callable[[str, Value, int], Value],
    window: int | None,
) -> Value:
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    q, k, v = (
        linear(f"{name}_proj", x, count * dim)
        for name, count in zip("qkv", (heads, kv_heads, kv_heads), strict=True)
    )
    cos, sin = (derived(f"rope.{name}", ("max_positions", dim // 2)) for name in ("cos", "sin"))
    q, k = (
        build.rope(f"{at}.{name}_rope", each, cos, sin, dim) for name, each in zip("qk", (q, k), strict=True)
    )
    build.add_caches(0, kv_heads, dim, config.dtype)
    build.kv_write(0, k, v)
    return build.attention(
        f"{at}.attention", 0, q, head_dim=dim, num_kv_heads=kv_heads, scale=dim**-0.5, window=window
    )


def _grow(
    build: GraphBuilder, config: ModelConfig, at: str, hidden: Value, scores: Value | None, width: int
) -> tuple[list[Value], tuple[Value, ...]]:
    """Head, likeliest tokens, next level: (all outputs of `expand_tree`, the next level)."""
    normed = build.rms_norm(f"{at}.norm", hidden, weight("norm.weight", (config.hidden_size,), F32), 1e-5)
    lm_head = weight("head.weight", (config.vocab_size, config.hidden_size), config.dtype)
    logits = build.head_logits(f"{at}.logits", normed, lm_head)
    tokens, logprobs = build.top_tokens(f"{at}.top", logits, 3, None)
    found = build.expand_tree(f"{at}.tree", tokens, logprobs, scores, width)
    return list(found), found[1:]


def draft_inputs(width: int, nodes: int = 3) -> dict[str, np.ndarray]:
    """A chain of three tokens, one of a single token, a row without a sequence; levels of all nodes and of fewer."""
    counts, prefix = np.array([3, 1, 0], np.int32), np.array([60, 63, 0], np.int32)
    chain = np.arange(nodes, dtype=np.int32)
    return {
        "tokens": np.random.default_rng(3).integers(0, 40, (3, nodes)).astype(np.int32),
        "ancestors": np.tile((1 << (chain + 1).astype(np.int64)) - 1, (3, 1)),
        "depth": np.tile(chain, (3, 1)),
        "num_nodes": counts,
        "prefix_len": prefix,
        "block_table": np.random.default_rng(4)
        .permutation(NUM_BLOCKS)
        .reshape(3, -1)[:, :4]
        .astype(np.int32),
        "temperature": np.array([0.8, 0.0, 1.0], np.float32),
        "seed": np.array([7, 8, 9]),
        "level_nodes": np.array([width, max(width - 1, 1), 0], np.int32),
        "draft_prefix": prefix + counts,
    }


def draft_weights(graph: Graph) -> dict[str, torch.Tensor]:
    """Float32 values for the weights of a graph that was not fused, by name."""
    generator = torch.Generator().manual_seed(5)
    values = {each.name: each for op in graph.ops for each in op.reads if each.role is Role.WEIGHT}
    found = {}
    for name, value in sorted(values.items()):
        shape = [MAX_MODEL_LEN + BLOCK_TOKENS if dim == "max_positions" else int(dim) for dim in value.shape]
        found[name] = torch.randn(shape, generator=generator) * (
            1 if name.startswith("rope") else shape[-1] ** -0.5
        )
    if "token_ids" in found:
        found["token_ids"] = torch.arange(len(found["token_ids"])).int() * 2 + 1
    found["head.weight"] = found.get("head.weight", torch.zeros(1)) * 4
    return found
