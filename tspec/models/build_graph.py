"""From a model's configuration to its plain graph: embedding, layers, norm, head, verdict. Fuses nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.core.errors import ConfigError
from tspec.core.sampling import EDITED, FUSED, SAMPLING, pass_kind
from tspec.core.sampling_params import MAX_LOGPROBS
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.ir import Graph, Role, Value
from tspec.graph.static_inputs import TARGETS
from tspec.models.decoder import input_norm
from tspec.models.llama import llama_layer
from tspec.models.mistral import mistral_layer
from tspec.models.qwen2 import qwen2_layer
from tspec.models.qwen3 import qwen3_layer

LayerBuilder = Callable[[GraphBuilder, ModelConfig, int, Value], Value]

LAYERS: Mapping[str, LayerBuilder] = {
    "llama": llama_layer,
    "mistral": mistral_layer,
    "qwen2": qwen2_layer,
    "qwen3": qwen3_layer,
}
"""What adds one decoder layer, by `ModelConfig.architecture`."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a proposer's head reads of the target, joined in this order: residual streams as they enter these layers
    (num_layers: as they leave the last one); None for the last one after the final norm.
    """

    layers: tuple[int, ...] | None = None

    def width(self, hidden_size: int) -> int:
        """Numbers a position."""
        return hidden_size * (1 if self.layers is None else len(self.layers))


HEADS = ("all", "ratio", "last", "prompt", "none")

PASS_KINDS: Mapping[str, Mapping[str, Any]] = {
    **{
        pass_kind(head, sampling): {"head": head, "sampling": sampling}
        for head in ("all", "ratio", "last")
        for sampling in SAMPLING
        if (head, sampling) != ("ratio", FUSED)
    },
    "prompt": {"head": "prompt"},
    "none": {"head": "none"},
    "logits": {"head": "all", "with_logits": True},
}
"""The kinds of passes by name: the arguments of `build_graph`."""


def build_graph(
    config: ModelConfig,
    *,
    head: str = "all",
    sampling: str = FUSED,
    with_logits: bool = False,
    draft_vocab: int | None = None,
    features: Features | None = None,
    activations: DType = DType.FLOAT32,
) -> Graph:
    """Write a pass of a model as a graph, one op a step of the formulae.

    head         "all": every node reaches the head; the graph ends in a verdict by matching, and commits it
                 "ratio": the verdict is by rejection sampling where the proposer drew its candidates
                 "last": the last node alone reaches the head (the last chunk of a prefill); no verdict
                 "prompt": log-probabilities of a prompt's own tokens (`targets`); no verdict
                 "none": only keys and values are written (all other chunks)
    sampling     one of SAMPLING (core/sampling.py)
    with_logits  makes the logits an output of the graph too
    draft_vocab  tokens that a drawing proposer knows where they are fewer than the target's; for "ratio"
    features     what a proposer's head reads of this model: it is stored for the committed nodes
    activations  dtype of all rows: float32 on the CPU, the weights' own on cuda

    Outputs  all, ratio: out_tokens, num_out, path; last: node_tokens [B, 1]; prompt and none: nothing. Then logprobs,
             top_tokens, top_logprobs unless fused; then logits
    Errors   ConfigError for an architecture, a `head` or a `sampling` that is not known
    """
    layer_builder = LAYERS.get(config.architecture)
    _need_known(
        "architecture", config.architecture, tuple(LAYERS), "Use a checkpoint of one of these families."
    )
    _need_known("head", head, HEADS, "Pick one of them.")
    _need_known("sampling", sampling, SAMPLING, "Pick one of them.")
    assert layer_builder is not None
    build = GraphBuilder(f"{config.architecture} head={head}")
    hidden = build.embed("embed", embedding(config), activations)
    streams = [hidden]
    for layer in range(config.num_layers):
        streams.append(layer_builder(build, config, layer, streams[-1]))
    hidden = streams[-1]
    seen = _seen_features(build, config, features, streams)
    if head not in ("all", "ratio"):
        _keep_features(build, seen)
    if head == "none":
        return build.build([])
    normed = input_norm(build, config, "norm", "model.norm", hidden)
    name = "all_logits" if head == "last" else "logits"
    logits = build.head_logits(name, normed, head_weight(config))
    if head == "last":
        logits = build.last_row("logits", logits)
    if head == "prompt":
        return build.build(build.token_logprobs(logits, TARGETS, MAX_LOGPROBS))
    outputs = _choose(build, config, logits, head, sampling, draft_vocab)
    if head in ("all", "ratio"):
        _keep_features(build, seen, path=outputs[2], num_out=outputs[1])
    return build.build([*outputs, logits] if with_logits else outputs)


def _choose(
    build: GraphBuilder, config: ModelConfig, logits: Value, head: str, sampling: str, draft_vocab: int | None
) -> list[Value]:
    """Sample after every row; accept and commit unless there is only one."""
    edited = build.edit_logits("edited", logits) if sampling == EDITED else logits
    kept = () if sampling == FUSED else build.find_kept(edited)
    node_tokens = build.sample("node_tokens", edited, *kept[:2])
    if head == "last":
        verdict: tuple[Value, ...] = (node_tokens,)
    elif head == "all":
        verdict = build.accept_match(node_tokens)
    else:
        vocab = config.vocab_size
        index = None if draft_vocab is None else draft_index(vocab)
        verdict = build.accept_ratio(node_tokens, edited, kept, draft_vocab or vocab, index)
    out_tokens, *where = verdict
    logprobs = () if sampling == FUSED else build.token_logprobs(logits, out_tokens, MAX_LOGPROBS, *where)
    if head != "last":
        build.kv_commit(verdict[2], verdict[1])
    return [*verdict, *logprobs]


def _seen_features(
    build: GraphBuilder, config: ModelConfig, features: Features | None, streams: Sequence[Value]
) -> list[Value]:
    """The rows that a head reads: residual streams, or the last one after the final norm."""
    if features is None:
        return []
    if features.layers is None:
        return [input_norm(build, config, "feature_norm", "model.norm", streams[-1])]
    return [streams[layer] for layer in features.layers]


def _keep_features(
    build: GraphBuilder, seen: Sequence[Value], path: Value | None = None, num_out: Value | None = None
) -> None:
    total = sum(int(rows.shape[-1]) for rows in seen)
    for number, rows in enumerate(seen):
        build.keep_features(rows, number * int(rows.shape[-1]), total, path, num_out)


def draft_index(vocab: int) -> Value:
    """Where each token of the target stands in the draft's vocabulary, -1 for nowhere."""
    return Value("draft.index", (vocab,), DType.INT32, Role.WEIGHT)


def _need_known(what: str, got: str, known: tuple[str, ...], fix: str) -> None:
    if got not in known:
        raise ConfigError(what, got=repr(got), need=f"one of {', '.join(known)}", fix=fix)


def embedding(config: ModelConfig) -> Value:
    """The table of a model's embeddings."""
    return weight("model.embed_tokens.weight", (config.vocab_size, config.hidden_size), config.dtype)


def head_weight(config: ModelConfig) -> Value:
    """The matrix of a model's head, which may be its table of embeddings."""
    if config.tie_word_embeddings:
        return embedding(config)
    return weight("lm_head.weight", (config.vocab_size, config.hidden_size), config.dtype)


def expected_tensors(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the checkpoint tensors that a plain graph reads, and their shapes."""
    weights = (value for op in graph.ops for value in op.reads if value.parts)
    return {value.name: tuple(map(int, value.shape)) for value in weights}
