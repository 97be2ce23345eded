"""From a model's configuration to its plain graph: embedding, layers, norm, head, verdict. Fuses nothing."""

from collections.abc import Callable, Mapping

from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.core.errors import ConfigError
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.ir import Graph, Value
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

HEADS = ("all", "last", "none")


def build_graph(
    config: ModelConfig, *, head: str = "all", with_logits: bool = False, activations: DType = DType.FLOAT32
) -> Graph:
    """Write the verify pass of a model as a graph, one op a step of the formulae.

    head         "all": every node reaches the head; the graph ends in a verdict and commits it
                 "last": the last node alone reaches the head (the last chunk of a prefill); no verdict
                 "none": only keys and values are written (all other chunks)
    with_logits  makes the logits an output of the graph too
    activations  dtype of all rows: float32 on the CPU, the weights' own on cuda

    Outputs  all: out_tokens, num_out, path; last: node_tokens [B, 1]; none: nothing; then logits
    Errors   ConfigError for an architecture or a `head` that is not known
    """
    layer_builder = LAYERS.get(config.architecture)
    if layer_builder is None:
        raise ConfigError(
            "architecture",
            got=repr(config.architecture),
            need=f"one of {', '.join(LAYERS)}",
            fix="Use a checkpoint of one of these families.",
        )
    if head not in HEADS:
        raise ConfigError("head", got=repr(head), need=f"one of {', '.join(HEADS)}", fix="Pick one of them.")
    build = GraphBuilder(f"{config.architecture} head={head}")
    hidden = build.embed("embed", _embedding(config), activations)
    for layer in range(config.num_layers):
        hidden = layer_builder(build, config, layer, hidden)
    return build.build(_head(build, config, hidden, head, with_logits))


def _head(
    build: GraphBuilder, config: ModelConfig, hidden: Value, head: str, with_logits: bool
) -> list[Value]:
    if head == "none":
        return []
    normed = input_norm(build, config, "norm", "model.norm", hidden)
    if head == "last":
        logits = build.last_row("logits", build.linear("all_logits", normed, _head_weight(config)))
        outputs = [build.argmax("node_tokens", logits)]
    else:
        logits = build.linear("logits", normed, _head_weight(config))
        out_tokens, num_out, path = build.accept_match(build.argmax("node_tokens", logits))
        build.kv_commit(path, num_out)
        outputs = [out_tokens, num_out, path]
    return [*outputs, logits] if with_logits else outputs


def _embedding(config: ModelConfig) -> Value:
    return weight("model.embed_tokens.weight", (config.vocab_size, config.hidden_size), config.dtype)


def _head_weight(config: ModelConfig) -> Value:
    if config.tie_word_embeddings:
        return _embedding(config)
    return weight("lm_head.weight", (config.vocab_size, config.hidden_size), config.dtype)


def expected_tensors(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the checkpoint tensors that a plain graph reads, and their shapes."""
    weights = (value for op in graph.ops for value in op.reads if value.parts)
    return {value.name: tuple(map(int, value.shape)) for value in weights}
