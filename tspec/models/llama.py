"""Llama: the plain decoder layer, with full attention, and biases only where the config asks for them."""

from tspec.core.config import ModelConfig
from tspec.graph.builder import GraphBuilder
from tspec.graph.ir import Value
from tspec.models.decoder import attention_block, mlp_block


def llama_layer(build: GraphBuilder, config: ModelConfig, layer: int, hidden: Value) -> Value:
    """Add one layer and return its output."""
    hidden = attention_block(
        build,
        config,
        layer,
        hidden,
        qkv_bias=config.has_qkv_bias,
        o_bias=config.has_o_bias,
        qk_norm=False,
        window=None,
    )
    return mlp_block(build, config, layer, hidden, bias=config.has_mlp_bias)
