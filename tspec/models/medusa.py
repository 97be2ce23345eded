"""Medusa heads: each guesses one place further from the target's last hidden state; they have no cache of their own.

Source    Medusa, arXiv:2401.10774, section 3.1
"""

from tspec.core.dtypes import DType
from tspec.core.head_config import MedusaConfig
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.ir import Graph, Value
from tspec.models.draft import token_ids


def build_medusa(
    config: MedusaConfig,
    *,
    depth: int,
    width: int,
    dtype: DType,
    activations: DType = DType.FLOAT32,
) -> Graph:
    """Write a round of the first `depth` heads. Its pass is over the root alone, behind all that has features.

    Outputs  of each head l from 0: level{l}.tokens, level{l}.logprobs [B, 1, width], the likeliest first
    """
    build = GraphBuilder(f"medusa depth={depth} width={width}")
    size = config.hidden_size
    hidden = build.last_row("rows", build.read_features("features_here", 0, size, size, activations))
    ids = token_ids(config.num_logits) if config.draft_vocab_size is not None else None
    outputs: list[Value] = []
    for head in range(depth):
        rows = hidden
        for block in range(config.num_layers):
            at, source = f"head{head}.block{block}", f"blocks.{head}.{block}"
            bias = weight(f"{source}.bias", (size,), DType.FLOAT32) if config.has_bias else None
            x = build.linear(at, rows, weight(f"{source}.weight", (size, size), dtype), bias)
            rows = build.silu_add(f"{at}.residual", x, rows)
        source = f"lm_heads.{0 if config.shares_lm_head else head}.weight"
        logits = build.head_logits(
            f"head{head}.logits", rows, weight(source, (config.num_logits, size), dtype)
        )
        outputs += build.top_tokens(f"level{head}", logits, width, ids)
    return build.build(outputs)
