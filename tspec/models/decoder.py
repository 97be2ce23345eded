"""The parts of a pre-norm decoder layer that every family shares. Knows no family: callers say everything."""

from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.graph.builder import GraphBuilder, derived, weight
from tspec.graph.ir import Value


def attention_block(
    build: GraphBuilder,
    config: ModelConfig,
    layer: int,
    hidden: Value,
    *,
    qkv_bias: bool,
    o_bias: bool,
    qk_norm: bool,
    window: int | None,
    root: str = "model.",
) -> Value:
    """Norm, attention, residual."""
    at, source = build.at(f"layers.{layer}"), f"{root}layers.{layer}"
    x = input_norm(build, config, f"{at}.attn_norm", f"{source}.input_layernorm", hidden)
    attended = attend(
        build,
        config,
        layer,
        x,
        f"{source}.self_attn",
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        qk_norm=qk_norm,
        window=window,
    )
    return build.add(f"{at}.attn_residual", attended, hidden)


def attend(
    build: GraphBuilder,
    config: ModelConfig,
    layer: int,
    x: Value,
    source: str,
    *,
    qkv_bias: bool,
    o_bias: bool,
    qk_norm: bool,
    window: int | None,
) -> Value:
    """q/k/v of normed rows, rotary positions, KV write, attention, output projection."""
    at = build.at(f"layers.{layer}")
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    q = projection(build, config, f"{at}.q", f"{source}.q_proj", x, q_width, bias=qkv_bias)
    k = projection(build, config, f"{at}.k", f"{source}.k_proj", x, kv_width, bias=qkv_bias)
    v = projection(build, config, f"{at}.v", f"{source}.v_proj", x, kv_width, bias=qkv_bias)
    q = rotated(build, config, f"{at}.q", f"{source}.q_norm", q, norm=qk_norm)
    k = rotated(build, config, f"{at}.k", f"{source}.k_norm", k, norm=qk_norm)
    build.add_caches(layer, config.num_kv_heads, config.head_dim, config.dtype)
    build.kv_write(layer, k, v)
    attended = build.attention(
        f"{at}.attention",
        layer,
        q,
        head_dim=config.head_dim,
        num_kv_heads=config.num_kv_heads,
        scale=config.head_dim**-0.5,
        window=window,
    )
    return projection(build, config, f"{at}.o", f"{source}.o_proj", attended, config.hidden_size, bias=o_bias)


def rotated(
    build: GraphBuilder, config: ModelConfig, name: str, source: str, x: Value, *, norm: bool
) -> Value:
    """Heads turned by their positions, with `norm` each normalised before."""
    if norm:
        x = build.head_norm(f"{name}_norm", x, norm_weight(source, config.head_dim), config.rms_eps)
    shape = ("max_positions", config.head_dim // 2)
    return build.rope(
        f"{name}_rope", x, derived("rope.cos", shape), derived("rope.sin", shape), config.head_dim
    )


def mlp_block(
    build: GraphBuilder, config: ModelConfig, layer: int, hidden: Value, *, bias: bool, root: str = "model."
) -> Value:
    """Norm, gated MLP with SiLU, residual."""
    at, width = build.at(f"layers.{layer}"), config.intermediate_size
    norm, source = f"{root}layers.{layer}.post_attention_layernorm", f"{root}layers.{layer}.mlp"
    x = input_norm(build, config, f"{at}.mlp_norm", norm, hidden)
    gate = projection(build, config, f"{at}.gate", f"{source}.gate_proj", x, width, bias=bias)
    up = projection(build, config, f"{at}.up", f"{source}.up_proj", x, width, bias=bias)
    act = build.silu_mul(f"{at}.act", gate, up)
    down = projection(build, config, f"{at}.down", f"{source}.down_proj", act, config.hidden_size, bias=bias)
    return build.add(f"{at}.mlp_residual", down, hidden)


def input_norm(build: GraphBuilder, config: ModelConfig, name: str, source: str, x: Value) -> Value:
    """RMSNorm over the hidden size."""
    return build.rms_norm(name, x, norm_weight(source, config.hidden_size), config.rms_eps)


def projection(
    build: GraphBuilder, config: ModelConfig, name: str, source: str, x: Value, width: int, *, bias: bool
) -> Value:
    """A linear layer whose checkpoint tensors are `source`.weight and, with `bias`, `source`.bias."""
    matrix = weight(f"{source}.weight", (width, x.shape[-1]), config.dtype)
    shift = weight(f"{source}.bias", (width,), DType.FLOAT32) if bias else None
    return build.linear(name, x, matrix, shift)


def norm_weight(source: str, width: int) -> Value:
    """The scale of a norm: float32 whatever the checkpoint stores."""
    return weight(f"{source}.weight", (width,), DType.FLOAT32)
