"""Qwen2: q, k and v always have biases, nothing else has; some layers may use a sliding window."""

from tspec.core.config import ModelConfig
from tspec.graph.builder import GraphBuilder
from tspec.graph.ir import Value
from tspec.models.decoder import attention_block, mlp_block


def qwen2_layer(build: GraphBuilder, config: ModelConfig, layer: int, hidden: Value) -> Value:
    """Add one layer and return its output."""
    hidden = attention_block(
        build, config, layer, hidden, qkv_bias=True, o_bias=False, qk_norm=False, window=config.window(layer)
    )
    return mlp_block(build, config, layer, hidden, bias=False)
