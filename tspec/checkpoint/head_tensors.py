"""The tensors of a draft head under one set of names, whichever layout they came in: names, shapes, renaming.

    fc.weight  fc.bias  fc_norm.{aux}.weight  input_norm.weight
    layers.{layer}.input_layernorm.weight        eagle3, layer 0: of the embedding's half
    layers.{layer}.hidden_norm.weight            eagle3, layer 0
    layers.{layer}.self_attn.{q,k,v,o}_proj.{weight,bias}  layers.{layer}.self_attn.{q,k}_norm.weight
    layers.{layer}.post_attention_layernorm.weight  layers.{layer}.mlp.{gate,up,down}_proj.{weight,bias}
    norm.weight  lm_head.weight  embed_tokens.weight  d2t
    embedding_layernorm.weight  hidden_states_layernorm.weight                   eagle1: before fc
    blocks.{head}.{block}.{weight,bias}  lm_heads.{head}.weight  token_map       Medusa

Reads no file.
"""

import re
from collections.abc import Iterator

from tspec.core.head_config import EagleConfig, HeadFormat, MedusaConfig

Shapes = Iterator[tuple[str, tuple[int, ...]]]

D2T, TOKEN_MAP = "d2t", "token_map"
MAPS = (D2T, TOKEN_MAP)
"""Integer tensors; all others are weights."""

HARMLESS = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")
"""What a file may hold without need: masks and the target's own weights, for training."""

_RENAMED = (
    (r"(?:model|medusa_heads?)\.", ""),
    (r"midlayer\.", "layers.0."),
    (r"transformer\.", "layers.0."),
    (r"fusion_fc\.", "fc."),
    (r"enorm\.", "embedding_layernorm."),
    (r"hnorm\.", "hidden_states_layernorm."),
    (r"pre_lm_head_layernorm\.", "norm."),
    (r"blocks\.(\d+)\.layers\.(\d+)\.", r"blocks.\1.\2."),
    (r"(\d+)\.(\d+)\.linear\.", r"blocks.\1.\2."),
    (r"(\d+)\.\d+\.weight$", r"lm_heads.\1.weight"),
)


def canonical_name(name: str) -> str:
    """The one name of a tensor that a published layout calls `name`; an unknown name stays as it is."""
    for pattern, replacement in _RENAMED:
        name = re.sub(f"^{pattern}", replacement, name)
    return name


def head_tensors(config: EagleConfig | MedusaConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all the tensors that a head needs of its own file."""
    if isinstance(config, MedusaConfig):
        return dict(_medusa(config))
    return {**dict(_around(config)), **dict(_layers(config))}


def _around(config: EagleConfig) -> Shapes:
    """Everything before and after the decoder layers."""
    hidden, width = config.layer.hidden_size, config.target_hidden_size
    yield "fc.weight", (hidden, config.fc_width)
    if config.fc_bias:
        yield "fc.bias", (hidden,)
    if config.fc_norm:
        for aux in range(len(config.aux_layers)):
            yield f"fc_norm.{aux}.weight", (width,)
    if config.norm_before_fc:
        yield "input_norm.weight", (config.fc_width,)
    if config.has_embedding_norm:
        yield "embedding_layernorm.weight", (hidden,)
    if config.has_hidden_norm:
        yield "hidden_states_layernorm.weight", (width,)
    if config.has_final_norm:
        yield "norm.weight", (hidden,)
    if config.has_own_head:
        yield "lm_head.weight", (config.num_logits, hidden)
    if config.has_own_embedding:
        yield "embed_tokens.weight", (config.target_vocab_size, hidden)
    if config.draft_vocab_size is not None:
        yield D2T, (config.draft_vocab_size,)


def _layers(config: EagleConfig) -> Shapes:
    sizes = config.layer
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    q_width, kv_width = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    for layer in range(sizes.num_layers):
        at = f"layers.{layer}"
        is_joined = layer == 0 and config.format is HeadFormat.EAGLE3
        inputs = 2 * hidden if is_joined else hidden
        if layer > 0 or config.has_input_norm:
            yield f"{at}.input_layernorm.weight", (hidden,)
        if is_joined:
            yield f"{at}.hidden_norm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        if sizes.has_qk_norm:
            yield f"{at}.self_attn.q_norm.weight", (sizes.head_dim,)
            yield f"{at}.self_attn.k_norm.weight", (sizes.head_dim,)
        for name, width in (("q", q_width), ("k", kv_width), ("v", kv_width)):
            yield from _linear(f"{at}.self_attn.{name}_proj", width, inputs, sizes.has_qkv_bias)
        yield from _linear(f"{at}.self_attn.o_proj", hidden, q_width, sizes.has_o_bias)
        for name in ("gate", "up"):
            yield from _linear(f"{at}.mlp.{name}_proj", inner, hidden, sizes.has_mlp_bias)
        yield from _linear(f"{at}.mlp.down_proj", hidden, inner, sizes.has_mlp_bias)


def _medusa(config: MedusaConfig) -> Shapes:
    hidden = config.hidden_size
    for head in range(config.num_heads):
        for block in range(config.num_layers):
            yield from _linear(f"blocks.{head}.{block}", hidden, hidden, config.has_bias)
        if head == 0 or not config.shares_lm_head:
            yield f"lm_heads.{head}.weight", (config.num_logits, hidden)
    if config.draft_vocab_size is not None:
        yield TOKEN_MAP, (config.draft_vocab_size,)


def _linear(name: str, outputs: int, inputs: int, has_bias: bool) -> Shapes:
    yield f"{name}.weight", (outputs, inputs)
    if has_bias:
        yield f"{name}.bias", (outputs,)
