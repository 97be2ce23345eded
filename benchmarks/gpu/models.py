"""Models with random weights made on the device, and their executors: no checkpoint, no network.

Shapes are those of published models; a ModelConfig is written by hand, so nothing here reads `config.json`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from benchmarks.gpu.stand_in import stand_in
from tspec.core.config import ModelConfig, RopeConfig, RopeKind
from tspec.core.dtypes import DType
from tspec.core.rope import rope_table
from tspec.core.shapes import blocks_for
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.graph.ir import Graph
from tspec.graph.lower import lower
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket, Plan
from tspec.models import PASS_KINDS, build_graph, expected_tensors
from tspec.models.build_graph import Features

stand_in()

from tspec.runtime.cuda_bind import (  # noqa: E402
    DeviceModel,
    DevicePlan,
    feature_tensor,
    kv_tensors,
    load_device_weights,
)
from tspec.runtime.cuda_executor import CudaExecutor, device_model  # noqa: E402
from tspec.runtime.inputs import PassInputs  # noqa: E402
from tspec.runtime.torch_dtypes import TORCH_DTYPES  # noqa: E402

LLAMA_8B = ModelConfig(
    architecture="llama",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rms_eps=1e-5,
    max_position=131072,
    dtype=DType.BFLOAT16,
    rope=RopeConfig(RopeKind.LLAMA3, base=500000.0, factor=8.0, original_max_position=8192),
)
LLAMA_1B = replace(
    LLAMA_8B,
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=16,
    head_dim=64,
    rope=replace(LLAMA_8B.rope, factor=32.0),
    tie_word_embeddings=True,
)
QWEN_06B = ModelConfig(
    architecture="qwen3",
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    rms_eps=1e-6,
    max_position=40960,
    dtype=DType.BFLOAT16,
    rope=RopeConfig(base=1e6),
    tie_word_embeddings=True,
    has_qk_norm=True,
)
SHAPES = {"Llama-3.2-1B": LLAMA_1B, "Llama-3.1-8B": LLAMA_8B, "Qwen3-0.6B": QWEN_06B}
"""In the order in which they are measured."""

MEDIUM = replace(
    LLAMA_1B, vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_layers=4, num_heads=16
)
"""Large enough that products are split, small enough for tests."""

MICRO = replace(
    LLAMA_1B,
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
)
"""What the interpreter runs in a blink."""


def make_plans(
    config: ModelConfig, max_model_len: int, features: Features | None = None
) -> Callable[[str, Bucket], Plan]:
    """As `tspec.build.plan_maker`, which cannot be imported where a package that reads checkpoints is missing.

    The logits of kind "logits" are no output here: they stay in the arena, see `read_logits`.
    """

    @cache
    def graph(kind: str) -> Graph:
        return fuse(build_graph(config, activations=config.dtype, features=features, **PASS_KINDS[kind]))

    def make_plan(kind: str, bucket: Bucket) -> Plan:
        plan = lower(graph(kind), bucket, max_model_len=max_model_len)
        return replace(plan, outputs=tuple(name for name in plan.outputs if name != "logits"))

    return make_plan


class RandomModel:
    """A model with random weights and random KV memory, its executor, and blocks for `num_rows` sequences.

    features  what it keeps for a proposer's head, in memory that is random at first, too
    """

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        arch: str,
        *,
        max_model_len: int,
        num_rows: int,
        features: Features | None = None,
    ) -> None:
        self.config, self.device, self.max_model_len = config, device, max_model_len
        make_plan = make_plans(config, max_model_len, features)
        plan = make_plan("all", Bucket(1, 1))
        shapes = expected_tensors(build_graph(config, activations=config.dtype))
        generator = torch.Generator(device).manual_seed(0)
        positions = max_model_len + MAX_NODES
        tables = rope_table(config.rope, config.head_dim, config.max_position, positions)
        weights = load_device_weights(
            plan,
            lambda name: random_weight(name, shapes[name], TORCH_DTYPES[config.dtype], generator),
            dict(zip(("rope.cos", "rope.sin"), tables, strict=True)),
            device,
        )
        width = blocks_for(positions)
        caches = kv_tensors(plan, num_rows * width, device)
        kept_features = feature_tensor(plan, num_rows * width, device)
        for kept in (*caches, kept_features):
            if kept is not None:
                kept.normal_(generator=generator)
        self.model = model_on(device, arch, weights, *caches, kept_features)
        self.executor = CudaExecutor(make_plan, self.model)
        blocks = np.random.default_rng(0).permutation(num_rows * width).astype(np.int32)
        self.tables = blocks.reshape(num_rows, width)

    def inputs(self, trees: CandidateTrees, prefixes: list[int], first_row: int = 0) -> PassInputs:
        """What a pass of `trees` runs on, its rows' blocks those from `first_row` on."""
        rows = slice(first_row, first_row + len(prefixes))
        return PassInputs(trees, np.array(prefixes, np.int32), self.tables[rows])

    @property
    def kv_bytes_a_token(self) -> int:
        """Keys and values of one token in all layers."""
        config = self.config
        return (
            2 * config.num_layers * config.num_kv_heads * config.head_dim * self.model.k_cache.element_size()
        )


def random_chains(config: ModelConfig, rows: int, nodes: int, seed: int = 0) -> CandidateTrees:
    """A chain of `nodes` random tokens in each row."""
    tokens = np.random.default_rng(seed).integers(0, config.vocab_size, (rows, nodes)).astype(np.int32)
    parents = np.tile(np.arange(-1, nodes - 1, dtype=np.int32), (rows, 1))
    return CandidateTrees(tokens, parents, np.full(rows, nodes, np.int32))


def random_tree(config: ModelConfig, nodes: int, seed: int = 0) -> CandidateTrees:
    """One row: each node hangs below a random earlier one, and has a token of its own."""
    generator = np.random.default_rng(seed)
    tokens = generator.permutation(config.vocab_size)[:nodes].astype(np.int32)
    parents = [-1, *(int(generator.integers(0, node)) for node in range(1, nodes))]
    return CandidateTrees(tokens[None], np.array([parents], np.int32), np.array([nodes], np.int32))


def read_logits(bound: DevicePlan) -> torch.Tensor:
    """The logits [B, T, V] that the last pass of kind "logits" left in the arena, as a copy."""
    buffer = bound.plan.buffers["logits"]
    memory = bound.arena[buffer.offset_bytes : buffer.offset_bytes + buffer.size_bytes]
    return memory.view(TORCH_DTYPES[buffer.dtype]).view(buffer.shape).clone()


def model_on(
    device: torch.device,
    arch: str,
    weights: Mapping[str, torch.Tensor],
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    features: torch.Tensor | None = None,
) -> DeviceModel:
    """What the buckets of a model share; on no CUDA device without what tuning found, and without early launches."""
    if device.type == "cuda":
        return device_model(device, arch, weights, k_cache, v_cache, features)
    return DeviceModel(device, arch, weights, k_cache, v_cache, features=features)


def random_weight(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    """Rows keep their size through a layer; norms lie near 1. The head is wide, so that it has clear winners."""
    noise = torch.empty(shape, dtype=dtype, device=generator.device).normal_(generator=generator)
    if len(shape) == 1:
        return noise.mul_(0.1) if name.endswith(".bias") else noise.mul_(0.1).add_(1)
    return noise.mul_((2.0 if "embed" in name or "lm_head" in name else 1.0) * shape[1] ** -0.5)
