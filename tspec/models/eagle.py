"""EAGLE heads: one or more decoder layers on the target's hidden states and the tokens after them.

The pair (hidden state of position n, token of position n + 1) stands at position n + 1, so slot 0 stays empty.

Source    EAGLE, arXiv:2401.15077, section 4.1; EAGLE-3, arXiv:2503.01840, section 3.1
"""

from dataclasses import dataclass

from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.core.head_config import EagleConfig, HeadFormat
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.ir import OF_TARGET, Value
from tspec.models.build_graph import Features, embedding, head_weight
from tspec.models.decoder import attend, attention_block, input_norm, mlp_block, norm_weight
from tspec.models.draft import DraftParts


def eagle_features(config: EagleConfig) -> Features:
    """What the head reads of the target."""
    return Features(None if config.format is HeadFormat.EAGLE1 else config.aux_layers)


def eagle_parts(
    config: EagleConfig, target: ModelConfig, *, activations: DType = DType.FLOAT32
) -> DraftParts:
    """Return the steps of a head that belongs to `target`."""
    steps = _Steps(config, target, activations)
    return DraftParts(
        name=config.format.value,
        first=steps.first,
        level=steps.level,
        logits=steps.logits,
        fed_back=steps.fed_back,
        num_logits=config.num_logits,
        maps_tokens=config.draft_vocab_size is not None,
        first_slot=1,
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps that `build_draft` puts together."""

    config: EagleConfig
    target: ModelConfig
    activations: DType

    def first(self, build: GraphBuilder) -> Value:
        config, width = self.config, eagle_features(self.config).width(self.target.hidden_size)
        if config.format is HeadFormat.EAGLE1:
            hidden = build.read_features("features_here", 0, width, width, self.activations)
        else:
            aux = _joined(build, config, self.target.hidden_size, self.activations)
            fc = weight("fc.weight", (config.layer.hidden_size, width), config.layer.dtype)
            hidden = build.linear("fc", aux, fc, _fc_bias(config))
        return self._layers(build, hidden)

    def level(self, build: GraphBuilder, tokens: Value, parents: Value | None) -> Value:
        assert parents is not None
        return self._layers(build, parents)

    def _layers(self, build: GraphBuilder, hidden: Value) -> Value:
        embedded = build.embed(build.at("embed"), _embedding(self.config, self.target), self.activations)
        add_layers = _eagle1_layers if self.config.format is HeadFormat.EAGLE1 else _eagle3_layers
        return add_layers(build, self.config, embedded, hidden)

    def logits(self, build: GraphBuilder, name: str, rows: Value) -> Value:
        if self.config.has_final_norm:
            rows = input_norm(build, self.config.layer, f"{name}.norm", "norm", rows)
        return build.head_logits(name, rows, _head(self.config, self.target))

    def fed_back(self, build: GraphBuilder, name: str, rows: Value) -> Value:
        return input_norm(build, self.config.layer, name, "norm", rows) if self.config.norm_output else rows


def _joined(build: GraphBuilder, config: EagleConfig, width: int, dtype: DType) -> Value:
    """The target's hidden states side by side, normed where the head asks for it."""
    count = len(config.aux_layers)
    if config.fc_norm:
        each = [
            build.rms_norm(
                f"fc_norm{number}",
                build.read_features(f"features_here{number}", number * width, width, count * width, dtype),
                norm_weight(f"fc_norm.{number}", width),
                config.layer.rms_eps,
            )
            for number in range(count)
        ]
        joined = each[0]
        for number, rows in enumerate(each[1:], start=1):
            joined = build.concat(f"joined{number}", joined, rows)
    else:
        joined = build.read_features("features_here", 0, count * width, count * width, dtype)
    if config.norm_before_fc:
        scale = norm_weight("input_norm", count * width)
        joined = build.rms_norm("input_norm", joined, scale, config.layer.rms_eps)
    return joined


def _eagle3_layers(build: GraphBuilder, config: EagleConfig, embedded: Value, hidden: Value) -> Value:
    draft, at = config.layer, build.at("layers.0")
    normed = input_norm(build, draft, f"{at}.hidden_norm", "layers.0.hidden_norm", hidden)
    token = input_norm(build, draft, f"{at}.token_norm", "layers.0.input_layernorm", embedded)
    both = build.concat(f"{at}.both", token, normed)
    residual = normed if config.norm_before_residual else hidden
    return _rest(build, draft, _attend(build, draft, both), residual)


def _eagle1_layers(build: GraphBuilder, config: EagleConfig, embedded: Value, hidden: Value) -> Value:
    draft = config.layer
    if config.has_embedding_norm:
        embedded = input_norm(build, draft, build.at("token_norm"), "embedding_layernorm", embedded)
    if config.has_hidden_norm:
        scale = norm_weight("hidden_states_layernorm", int(hidden.shape[-1]))
        hidden = build.rms_norm(build.at("hidden_norm"), hidden, scale, draft.rms_eps)
    both = build.concat(build.at("both"), embedded, hidden)
    fc = weight("fc.weight", (draft.hidden_size, both.shape[-1]), draft.dtype)
    joined = build.linear(build.at("fc"), both, fc, _fc_bias(config))
    x = joined
    if config.has_input_norm:
        x = input_norm(build, draft, build.at("layers.0.attn_norm"), "layers.0.input_layernorm", joined)
    return _rest(build, draft, _attend(build, draft, x), joined)


def _attend(build: GraphBuilder, draft: ModelConfig, x: Value) -> Value:
    return attend(
        build,
        draft,
        0,
        x,
        "layers.0.self_attn",
        qkv_bias=draft.has_qkv_bias,
        o_bias=draft.has_o_bias,
        qk_norm=draft.has_qk_norm,
        window=draft.window(0),
    )


def _rest(build: GraphBuilder, draft: ModelConfig, attended: Value, residual: Value) -> Value:
    """The first layer from its residual on, then the others, which are plain ones."""
    hidden = build.add(build.at("layers.0.attn_residual"), attended, residual)
    hidden = mlp_block(build, draft, 0, hidden, bias=draft.has_mlp_bias, root="")
    for layer in range(1, draft.num_layers):
        hidden = attention_block(
            build,
            draft,
            layer,
            hidden,
            qkv_bias=draft.has_qkv_bias,
            o_bias=draft.has_o_bias,
            qk_norm=draft.has_qk_norm,
            window=draft.window(layer),
            root="",
        )
        hidden = mlp_block(build, draft, layer, hidden, bias=draft.has_mlp_bias, root="")
    return hidden


def _fc_bias(config: EagleConfig) -> Value | None:
    return weight("fc.bias", (config.layer.hidden_size,), DType.FLOAT32) if config.fc_bias else None


def _embedding(config: EagleConfig, target: ModelConfig) -> Value:
    if config.has_own_embedding:
        shape = (config.target_vocab_size, config.layer.hidden_size)
        return weight("embed_tokens.weight", shape, config.layer.dtype)
    return _of_target(embedding(target))


def _head(config: EagleConfig, target: ModelConfig) -> Value:
    if config.has_own_head:
        return weight("lm_head.weight", (config.num_logits, config.layer.hidden_size), config.layer.dtype)
    return _of_target(head_weight(target))


def _of_target(value: Value) -> Value:
    return weight(OF_TARGET + value.name, value.shape, value.dtype)
