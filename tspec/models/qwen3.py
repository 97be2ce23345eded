"""Qwen3: each head of q and k is RMS-normalised before its rotation; biases only where the config asks."""

from tspec.core.config import ModelConfig
from tspec.graph.builder import GraphBuilder
from tspec.graph.ir import Value
from tspec.models.decoder import attention_block, mlp_block


def qwen3_layer(build: GraphBuilder, config: ModelConfig, layer: int, hidden: Value) -> Value:
    """Add one layer and return its output."""
    hidden = attention_block(
        build,
        config,
        layer,
        hidden,
        qkv_bias=config.has_qkv_bias,
        o_bias=config.has_o_bias,
        qk_norm=True,
        window=config.window(layer),
    )
    return mlp_block(build, config, layer, hidden, bias=False)
