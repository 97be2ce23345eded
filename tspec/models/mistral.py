"""Mistral: Llama without biases, with sliding-window attention where the config has one."""

from tspec.core.config import ModelConfig
from tspec.graph.builder import GraphBuilder
from tspec.graph.ir import Value
from tspec.models.decoder import attention_block, mlp_block


def mistral_layer(build: GraphBuilder, config: ModelConfig, layer: int, hidden: Value) -> Value:
    """Add one layer and return its output."""
    hidden = attention_block(
        build, config, layer, hidden, qkv_bias=False, o_bias=False, qk_norm=False, window=config.window(layer)
    )
    return mlp_block(build, config, layer, hidden, bias=False)
