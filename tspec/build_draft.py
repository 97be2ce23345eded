"""From the folder of a draft model or a head to what runs it: checks first, then plans, then weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from tspec.checkpoint.head_kind import is_head
from tspec.checkpoint.heads import HeadCheckpoint, open_head, target_ids
from tspec.checkpoint.hf_config import read_config
from tspec.checkpoint.vocabulary import check_vocabularies
from tspec.checkpoint.weights import (
    EMBEDDING,
    HEAD,
    account,
    checkpoint_dtype,
    open_checkpoint,
    resolve_tying,
)
from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.core.errors import CheckpointError, ConfigError
from tspec.core.head_config import EagleConfig, HeadFormat, MedusaConfig
from tspec.core.proposer import Proposer
from tspec.core.rope import rope_table
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES
from tspec.graph.ir import Graph
from tspec.graph.lower import lower
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket, Plan
from tspec.models import build_graph, expected_tensors
from tspec.models.build_graph import Features
from tspec.models.draft import DraftParts, build_draft
from tspec.models.draft_model import draft_model_parts
from tspec.models.eagle import eagle_features, eagle_parts
from tspec.models.medusa import build_medusa
from tspec.proposers.medusa import MedusaProposer
from tspec.proposers.model import DraftShape, ModelProposer, round_kind
from tspec.runtime.inputs import Executor, PlanMaker

MODEL_CHAIN = 4
"""Candidates of a chain from a model, where the user says nothing: each costs a step of it, right or wrong."""
MODEL_TREE_DEPTH = 5


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposer's model whose folder was read and found right; no weights yet.

    features       what it reads of the target, which the target's passes then store
    draft_vocab    tokens that it knows where they are fewer than the target's and may be drawn, else None
    has_cache      whether it takes in tokens; else a round reads features of the newest place alone
    target_index   int32 [V] then: where each of the target's tokens is in its vocabulary, -1 for nowhere
    make_plan      from `round_kind(depth)` and a bucket to a plan
    load, tables   its weights, as `pack_weights` takes them
    max_candidates most candidates that it gives a sequence a round
    make_proposer  from its executor to the proposer
    """

    name: str
    features: Features | None
    make_plan: PlanMaker
    load: Callable[[str], torch.Tensor]
    tables: Mapping[str, np.ndarray]
    depth: int
    max_candidates: int
    make_proposer: Callable[[Executor], Proposer]
    has_cache: bool = True
    draft_vocab: int | None = None
    target_index: np.ndarray | None = None

    def passes(self, rows: int) -> list[tuple[str, Bucket]]:
        """What decoding and prefilling meet most: rounds that take in a few tokens, and whole chunks."""
        if not self.has_cache:
            return [(round_kind(self.depth), Bucket(rows, 1))]
        rounds = [(round_kind(self.depth), Bucket(rows, nodes)) for nodes in (1, 2, 4, 8)]
        return [*rounds, (round_kind(0), Bucket(rows, MAX_NODES))]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a draft is opened for."""

    speculative: SpeculativeConfig
    target_folder: Path
    target: ModelConfig
    max_model_len: int
    num_cheap: int
    activations: DType

    @property
    def folder(self) -> Path:
        assert self.speculative.model is not None, "SpeculativeConfig asks for it"
        return Path(self.speculative.model)

    @property
    def draws(self) -> str:
        if self.speculative.draft_sample_method == "greedy":
            return "top"
        return "match" if self.speculative.acceptance == "match" else "ratio"

    def sizes(self) -> tuple[int, int]:
        """Levels, and candidates in all."""
        asked, width = self.speculative, self.speculative.draft_top_k
        if width == 1:
            most = asked.num_speculative_tokens or asked.draft_depth or min(MODEL_CHAIN, self.num_cheap)
            depth = min(asked.draft_depth or most, most)
            return depth, depth
        most = asked.num_speculative_tokens or self.num_cheap
        depth = min(asked.draft_depth or MODEL_TREE_DEPTH, most)
        if (depth - 1) * width >= MAX_NODES:
            raise ConfigError(
                "draft_depth",
                got=f"{depth} levels of {width} nodes",
                need=f"at most {MAX_NODES - 1} nodes that go on",
                fix="Lower draft_depth or draft_top_k.",
            )
        return depth, most

    def rope(self, config: ModelConfig) -> dict[str, np.ndarray]:
        cos, sin = rope_table(
            config.rope, config.head_dim, config.max_position, self.max_model_len + MAX_NODES
        )
        return {"rope.cos": cos, "rope.sin": sin}

    def plans(self, make_graph: Callable[[int], Graph]) -> PlanMaker:
        width = self.speculative.draft_top_k

        @cache
        def graph(depth: int) -> Graph:
            return fuse(make_graph(depth))

        def make_plan(kind: str, bucket: Bucket) -> Plan:
            depth = int(kind.removeprefix(round_kind(0)[:-1]))
            return lower(graph(depth), bucket, max_model_len=self.max_model_len, width=width)

        return make_plan

    def caching(
        self, name: str, parts: DraftParts, num_tokens: int
    ) -> "tuple[PlanMaker, Callable[[Executor], Proposer]]":
        """Plans and proposer of a model with a cache."""
        depth, _ = self.sizes()
        width = self.speculative.draft_top_k
        shape = DraftShape(depth, width, self.draws, parts.first_slot, num_tokens)
        make_graph = partial(_round_graph, parts, width, self.draws)
        return self.plans(make_graph), lambda executor: ModelProposer(name, executor, shape)


def open_draft(
    speculative: SpeculativeConfig,
    target_folder: Path,
    target: ModelConfig,
    *,
    max_model_len: int,
    num_cheap: int,
    activations: DType = DType.FLOAT32,
) -> Draft:
    """Read and check the folder of a proposer's model. Reads no weights.

    num_cheap    candidates that the target verifies at about the price of none
    activations  dtype of all rows: float32 on the CPU, the target's own on cuda

    Errors   CheckpointError for a model that does not fit the target, by name, and for a method that is not that of
             the folder
    """
    asked = _Asked(speculative, target_folder, target, max_model_len, num_cheap, activations)
    if speculative.method == "draft_model":
        return _draft_model(asked)
    head = open_head(asked.folder, target, speculative.aux_layer_offset)
    _check_method(speculative.method, head)
    return (
        _medusa(asked, head, head.config)
        if isinstance(head.config, MedusaConfig)
        else _eagle(asked, head, head.config)
    )


def method_of(folder: Path) -> str:
    """The speculative method that a folder's model is for. Errors: CheckpointError for a head that is no known one."""
    if not is_head(folder):
        return "draft_model"
    return "medusa" if isinstance(open_head(folder, None).config, MedusaConfig) else "eagle"


def _round_graph(parts: DraftParts, width: int, draws: str, depth: int) -> Graph:
    return build_draft(parts, depth=depth, width=width, draws=draws)


def _draft_model(asked: _Asked) -> Draft:
    checkpoint = open_checkpoint(asked.folder)
    config = replace(read_config(asked.folder), dtype=checkpoint_dtype(checkpoint))
    check_vocabularies(asked.target_folder, asked.folder, asked.target.vocab_size, config.vocab_size)
    config = resolve_tying(config, checkpoint)
    account(checkpoint, expected_tensors(build_graph(config)))
    num_tokens = min(config.vocab_size, asked.target.vocab_size)
    config = replace(config, vocab_size=num_tokens, dtype=_weights_dtype(asked, config.dtype))

    def load(name: str) -> torch.Tensor:
        tensor = checkpoint.load(name)
        return tensor[:num_tokens] if name in (EMBEDDING, HEAD) else tensor

    parts = draft_model_parts(config, activations=asked.activations)
    make_plan, make_proposer = asked.caching("draft_model", parts, num_tokens)
    depth, most = asked.sizes()
    index = None
    if num_tokens < asked.target.vocab_size and asked.draws == "ratio":
        index = _index_of(np.arange(num_tokens), asked.target.vocab_size)
    return Draft(
        name="draft_model",
        features=None,
        make_plan=make_plan,
        load=load,
        tables=asked.rope(config),
        depth=depth,
        max_candidates=most,
        make_proposer=make_proposer,
        draft_vocab=None if index is None else num_tokens,
        target_index=index,
    )


def _eagle(asked: _Asked, head: HeadCheckpoint, config: EagleConfig) -> Draft:
    config = replace(config, layer=replace(config.layer, dtype=_weights_dtype(asked, config.layer.dtype)))
    parts = eagle_parts(config, asked.target, activations=asked.activations)
    make_plan, make_proposer = asked.caching(config.format.value, parts, asked.target.vocab_size)
    tables, index = asked.rope(config.layer), None
    if parts.maps_tokens:
        ids = target_ids(head)
        tables["draft.token_ids"] = ids
        index = _index_of(ids, asked.target.vocab_size) if asked.draws == "ratio" else None
    depth, most = asked.sizes()
    return Draft(
        name=config.format.value,
        features=eagle_features(config),
        make_plan=make_plan,
        load=head.load,
        tables=tables,
        depth=depth,
        max_candidates=most,
        make_proposer=make_proposer,
        draft_vocab=None if index is None else config.num_logits,
        target_index=index,
    )


def _medusa(asked: _Asked, head: HeadCheckpoint, config: MedusaConfig) -> Draft:
    depth, most = asked.sizes()
    depth = min(depth, config.num_heads)
    width = asked.speculative.draft_top_k
    dtype = _weights_dtype(asked, asked.target.dtype)
    make_graph = partial(_medusa_graph, config, width, dtype, asked.activations)
    tables = {"draft.token_ids": target_ids(head)} if config.draft_vocab_size is not None else {}
    return Draft(
        name="medusa",
        features=Features(None),
        make_plan=asked.plans(make_graph),
        load=head.load,
        tables=tables,
        depth=depth,
        max_candidates=depth if width == 1 else most,
        has_cache=False,
        make_proposer=lambda executor: MedusaProposer(executor, depth=depth, width=width),
    )


def _medusa_graph(config: MedusaConfig, width: int, dtype: DType, activations: DType, depth: int) -> Graph:
    return build_medusa(config, depth=depth, width=width, dtype=dtype, activations=activations)


def _weights_dtype(asked: _Asked, own: DType) -> DType:
    """A kernel of cuda wants rows and weights of one dtype; the CPU takes each as it is."""
    return own if asked.activations is DType.FLOAT32 else asked.activations


def _index_of(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    index = np.full(vocab_size, -1, dtype=np.int32)
    index[ids] = np.arange(len(ids), dtype=np.int32)
    return index


def _check_method(method: str, head: HeadCheckpoint) -> None:
    found = head.config.format
    allowed = {
        "medusa": (HeadFormat.MEDUSA,),
        "eagle": (HeadFormat.EAGLE1, HeadFormat.EAGLE3),
        "eagle3": (HeadFormat.EAGLE3,),
    }
    if found not in allowed[method]:
        raise CheckpointError(
            f"head in {head.folder}",
            got=f"one of format {found.value}",
            need=f"one for method {method}",
            fix="Set method to what the head is: medusa, eagle or eagle3.",
        )
