"""Whole rounds of proposers' models as cases: what was committed is taken in, then a tree grows level by level."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from support.cpu_pass import MAX_MODEL_LEN, Case
from support.graphs import TINY, bind_weights, tiny_config, weights_of
from support.kernel_case import Maker, chains

from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.core.head_config import EagleConfig, HeadFormat, MedusaConfig
from tspec.core.shapes import BLOCK_TOKENS
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.graph.cost import bind
from tspec.graph.ir import FEATURES, Graph, Role
from tspec.graph.passes import fuse
from tspec.graph.static_inputs import STATIC_INPUTS
from tspec.models.draft import DraftParts, build_draft
from tspec.models.draft_model import draft_model_parts
from tspec.models.eagle import eagle_parts
from tspec.models.medusa import build_medusa

TARGET = replace(TINY, hidden_size=32, vocab_size=211)
COUNTS, PREFIXES, LEVEL_NODES = (5, 17, 1, 3), (61, 47, 64, 254), (10, 2, 0, 3)
"""Tokens taken in, tokens before them, and nodes of each level: the levels of two sequences lie across borders."""


def draft_model(architecture: str = "llama", **changes: Any) -> DraftParts:
    return draft_model_parts(tiny_config(architecture, vocab_size=TARGET.vocab_size, **changes))


def eagle(version: int, **changes: Any) -> DraftParts:
    """A head of version 1 or 3."""
    first = version == 1
    layer: ModelConfig = replace(TARGET, num_layers=changes.pop("num_layers", 1), hidden_size=32)
    config = EagleConfig(
        format=HeadFormat.EAGLE1 if first else HeadFormat.EAGLE3,
        layer=layer,
        target_hidden_size=TARGET.hidden_size,
        target_vocab_size=TARGET.vocab_size,
        aux_layers=() if first else (0, 1, 2),
        has_input_norm=not first,
        has_final_norm=not first,
        has_own_head=not first,
    )
    return eagle_parts(replace(config, **changes), TARGET)


def round_case(make: Maker, parts: DraftParts, depth: int, width: int, draws: str = "top") -> Case:
    """A round of a model with a cache of its own. Slots and features that it may not read are NaN."""
    graph = fuse(build_draft(parts, depth=depth, width=width, draws=draws))
    level_nodes = np.minimum(np.array(LEVEL_NODES, np.int32), width)
    return _case(make, graph, COUNTS, width, level_nodes, parts.first_slot)


def medusa_case(make: Maker, config: MedusaConfig, depth: int, width: int) -> Case:
    """A round of heads that have no cache: over the root alone."""
    graph = fuse(build_medusa(config, depth=depth, width=width, dtype=DType.FLOAT32))
    return _case(make, graph, (1,) * len(COUNTS), width, np.array(LEVEL_NODES, np.int32), 0)


def _case(
    make: Maker, graph: Graph, counts: Sequence[int], width: int, level_nodes: np.ndarray, first_slot: int
) -> Case:
    trees, random = chains(counts), np.random.default_rng(make.seed)
    tokens = random.integers(0, TARGET.vocab_size, trees.tokens.shape).astype(np.int32)
    inputs = make.inputs(CandidateTrees(tokens, trees.parents, trees.num_nodes), PREFIXES)
    inputs |= make.draws((1.0, 0.0, 0.7, 1.3)) | {"level_nodes": level_nodes}
    inputs["draft_prefix"] = inputs["prefix_len"] + inputs["num_nodes"]
    inputs = {value.name: inputs[value.name] for value in graph.inputs}
    tensors = _tensors(make, graph)
    slots = [range(first_slot, prefix) for prefix in PREFIXES]
    caches: dict[str, torch.Tensor] = {}
    states = {value.base: value.shape for op in graph.ops for value in op.reads if value.role is Role.STATE}
    if any(name != FEATURES for name in states):
        layers = sum(name.startswith("k_cache") for name in states)
        _, heads, _, head_dim = states["k_cache.0"]
        caches = make.caches(inputs, int(heads), int(head_dim), DType.FLOAT32, layers, slots)
    if FEATURES in states:
        caches[FEATURES] = _features(make, inputs, int(states[FEATURES][2]))
    extra = graph.inputs[len(STATIC_INPUTS) :]
    return Case(graph.ops, graph.outputs, tensors, inputs, caches, extra, width)


def _tensors(make: Maker, graph: Graph) -> dict[str, torch.Tensor]:
    """Values of all weights, joined ones and their parts. Products leave rows of about their size; logits spread."""
    dims = {"max_positions": MAX_MODEL_LEN + MAX_NODES}
    tensors: dict[str, torch.Tensor] = {}
    for name, value in weights_of(graph).items():
        shape = bind(value.shape, dims)
        if name == "draft.token_ids":
            ids = np.random.default_rng(make.seed).permutation(TARGET.vocab_size)[: shape[0]]
            tensors[name] = torch.from_numpy(ids.astype(np.int32))
        elif name == "rope.cos":
            cos, sin = make.rope_tables(*shape[:1], 2 * shape[1])
            tensors |= {each.name: make.tensors[each.name] for each in (cos, sin)}
        elif name != "rope.sin":
            tensors |= _parts(make, value.parts, shape)
    return tensors | bind_weights(graph, tensors)


def _parts(make: Maker, parts: Sequence[str], shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Rows of one matrix, cut into parts; any cut will do."""
    if len(shape) == 1:
        whole = 1 + 0.2 * make.normal(*shape)
    else:
        is_vocabulary = "embed" in parts[0] or "lm_head" in parts[0]
        whole = make.normal(*shape) * (3 if is_vocabulary else 1) / shape[1] ** 0.5
    sizes = [shape[0] // len(parts)] * len(parts)
    sizes[0] += shape[0] - sum(sizes)
    return dict(zip(parts, whole.split(sizes), strict=True))


def _features(make: Maker, inputs: dict[str, np.ndarray], width: int) -> torch.Tensor:
    """Features of all positions before the last node's; NaN elsewhere."""
    table = inputs["block_table"]
    features = torch.full((table.size, BLOCK_TOKENS, width), torch.nan)
    for row, (prefix, count) in enumerate(zip(inputs["prefix_len"], inputs["num_nodes"], strict=True)):
        for position in range(prefix + count - 1):
            block = table[row, position // BLOCK_TOKENS]
            features[block, position % BLOCK_TOKENS] = make.normal(width)
    return features
