"""A small model of the target's family as a proposer's: the same layers, written once for each level of the tree."""

from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.graph.builder import GraphBuilder
from tspec.graph.ir import Value
from tspec.models.build_graph import LAYERS, embedding, head_weight
from tspec.models.decoder import input_norm
from tspec.models.draft import DraftParts


def draft_model_parts(config: ModelConfig, *, activations: DType = DType.FLOAT32) -> DraftParts:
    """Return the steps of a draft model.

    config  its own, with a vocabulary no larger than the target's: ids are the same in both
    """
    add_layer = LAYERS[config.architecture]

    def rows(build: GraphBuilder) -> Value:
        hidden = build.embed(build.at("embed"), embedding(config), activations)
        for layer in range(config.num_layers):
            hidden = add_layer(build, config, layer, hidden)
        return hidden

    def logits(build: GraphBuilder, name: str, hidden: Value) -> Value:
        normed = input_norm(build, config, f"{name}.norm", "model.norm", hidden)
        return build.head_logits(name, normed, head_weight(config))

    return DraftParts(
        name=f"{config.architecture} draft",
        first=rows,
        level=lambda build, tokens, parents: rows(build),
        logits=logits,
        fed_back=None,
        num_logits=config.vocab_size,
    )
