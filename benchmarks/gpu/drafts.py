"""Draft models and EAGLE-3 heads with random weights beside a RandomModel: no checkpoint, no network."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch

from benchmarks.gpu.models import RandomModel, model_on, random_weight
from tspec.core.config import ModelConfig
from tspec.core.head_config import EagleConfig, HeadFormat
from tspec.core.rope import rope_table
from tspec.core.tree import MAX_NODES
from tspec.graph.ir import Graph
from tspec.graph.lower import lower
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket, Plan
from tspec.models import expected_tensors
from tspec.models.draft import DraftParts, build_draft
from tspec.models.draft_model import draft_model_parts
from tspec.models.eagle import eagle_parts
from tspec.proposers.model import DraftShape, ModelProposer, round_kind
from tspec.runtime.cuda_bind import kv_tensors, load_device_weights
from tspec.runtime.cuda_executor import CudaExecutor
from tspec.runtime.inputs import PlanMaker
from tspec.runtime.torch_dtypes import TORCH_DTYPES


class RandomDraft:
    """A proposer's model in the KV blocks of a target's sequences, in an executor of its own.

    config        of its layers: vocabulary and dtype are the target's
    depth, width  levels of a round, and nodes of a level that go on; 1 is a chain
    draws         see models/draft.py
    weights       those of a model with the same layers; None: random ones
    """

    def __init__(
        self,
        target: RandomModel,
        parts: DraftParts,
        config: ModelConfig,
        *,
        depth: int,
        width: int,
        draws: str = "top",
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        device, num_blocks = target.device, target.model.k_cache.shape[1]
        self.target, self.config, self.device = target, target.config, device
        self.shape = DraftShape(depth, width, draws, parts.first_slot, target.config.vocab_size)
        make_plan = _plan_maker(parts, self.shape, target.max_model_len)
        plan = make_plan(round_kind(depth), Bucket(1, 1))
        generator = torch.Generator(device).manual_seed(1)
        if weights is None:
            weights = _random_weights(target, parts, config, plan, generator)
        caches = kv_tensors(plan, num_blocks, device)
        for kept in caches:
            kept.normal_(generator=generator)
        arch, features = target.model.arch, target.model.features
        self.model = model_on(device, arch, weights, *caches, features)
        self.executor = CudaExecutor(make_plan, self.model)

    def proposer(self) -> ModelProposer:
        """A proposer that has seen no sequence yet."""
        return ModelProposer("draft", self.executor, self.shape)


def random_draft_model(target: RandomModel, config: ModelConfig, **shape: int | str) -> RandomDraft:
    """A draft model for `target`."""
    return RandomDraft(target, _draft_parts(config), config, **shape)  # type: ignore[arg-type]


def same_model(target: RandomModel, **shape: int | str) -> RandomDraft:
    """The target as its own draft model, with its weights where they lie."""
    config, weights = target.config, target.model.weights
    return RandomDraft(target, _draft_parts(config), config, weights=weights, **shape)  # type: ignore[arg-type]


def aux_layers(config: ModelConfig) -> tuple[int, ...]:
    """The hidden states that `random_eagle3` reads of a target: early, middle and late."""
    return 0, config.num_layers // 2, config.num_layers


def random_eagle3(target: RandomModel, **shape: int | str) -> RandomDraft:
    """An EAGLE-3 head for `target`, which keeps the features of `aux_layers`."""
    own = target.config
    layer = replace(own, num_layers=1)
    config = EagleConfig(
        format=HeadFormat.EAGLE3,
        layer=layer,
        target_hidden_size=own.hidden_size,
        target_vocab_size=own.vocab_size,
        aux_layers=aux_layers(own),
    )
    return RandomDraft(target, eagle_parts(config, own, activations=own.dtype), layer, **shape)  # type: ignore[arg-type]


def _draft_parts(config: ModelConfig) -> DraftParts:
    return draft_model_parts(config, activations=config.dtype)


def _plan_maker(parts: DraftParts, shape: DraftShape, max_model_len: int) -> PlanMaker:
    @cache
    def graph(kind: str) -> Graph:
        depth = int(kind.removeprefix(round_kind(0)[:-1]))
        return fuse(build_draft(parts, depth=depth, width=shape.width, draws=shape.draws))

    def make_plan(kind: str, bucket: Bucket) -> Plan:
        return lower(graph(kind), bucket, max_model_len=max_model_len, width=shape.width)

    return make_plan


def _random_weights(
    target: RandomModel, parts: DraftParts, config: ModelConfig, plan: Plan, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    dtype = TORCH_DTYPES[config.dtype]
    shapes = expected_tensors(build_draft(parts, depth=1))
    positions = target.max_model_len + MAX_NODES
    tables = rope_table(config.rope, config.head_dim, config.max_position, positions)
    return load_device_weights(
        plan,
        lambda name: random_weight(name, shapes[name], dtype, generator),
        dict(zip(("rope.cos", "rope.sin"), tables, strict=True)),
        target.device,
        target=target.model.weights,
    )
