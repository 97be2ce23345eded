"""Small random draft heads, EAGLE and Medusa: sizes, switches and tensors by name. Writes no file, runs nothing.

Shares no code with tspec: shapes are written down from the published layouts. As for tiny models, norms are near 1 but
not 1 and biases are not 0, so that a forgotten one shows.
"""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

Shapes = Iterator[tuple[str, tuple[int, ...]]]


class Sizes(Protocol):
    """What a head has to know of its target. A ModelConfig says it."""

    hidden_size: int
    vocab_size: int
    num_layers: int


@dataclass(frozen=True)
class TinyEagle:
    """An EAGLE head. `aux` are ids of hidden states: n enters layer n. Of `draft_ids`, None means the target's ids."""

    is_eagle3: bool
    target_hidden: int
    vocab: int
    hidden: int
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 48
    layers: int = 1
    rms_eps: float = 1e-5
    rope_base: float = 10000.0
    window: int | None = None
    aux: tuple[int, ...] = ()
    draft_ids: tuple[int, ...] | None = None
    fc_bias: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    para_norm: bool = False
    extra_norms: bool = False
    own_embedding: bool = False
    tensors: dict[str, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def own_head(self) -> bool:
        """Whether there is an output head of the head's own."""
        return self.is_eagle3

    @property
    def rows(self) -> int:
        """Rows of the output head."""
        return self.vocab if self.draft_ids is None else len(self.draft_ids)

    def target_id(self, draft_id: int) -> int:
        """The target's id of a draft id."""
        return draft_id if self.draft_ids is None else self.draft_ids[draft_id]


@dataclass(frozen=True)
class TinyMedusa:
    """Medusa heads of `blocks` residual blocks each. Of `draft_ids`, None means the target's ids."""

    num_heads: int
    blocks: int
    hidden: int
    vocab: int
    has_bias: bool = True
    shares_head: bool = False
    draft_ids: tuple[int, ...] | None = None
    tensors: dict[str, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Rows of each output head."""
        return self.vocab if self.draft_ids is None else len(self.draft_ids)


def tiny_eagle(
    target: Sizes, version: int, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> TinyEagle:
    """A random head of a target; version 1 or 3. `changes` are fields of TinyEagle."""
    head = TinyEagle(version == 3, target.hidden_size, target.vocab_size, target.hidden_size)
    if version == 3:
        depth = target.num_layers
        head = replace(head, aux=(2, depth // 2, depth - 3) if depth > 4 else (0, 1, depth))
    head = replace(head, **changes)
    if head.hidden != head.target_hidden:
        head = replace(head, own_embedding=True)
    shapes = dict(eagle_shapes(head))
    return replace(
        head, tensors={name: random_tensor(name, shape, seed, dtype) for name, shape in shapes.items()}
    )


def tiny_medusa(
    target: Sizes, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> TinyMedusa:
    """Random heads of a target. `changes` are fields of TinyMedusa."""
    heads = replace(TinyMedusa(3, 1, target.hidden_size, target.vocab_size), **changes)
    shapes = dict(_medusa_shapes(heads))
    return replace(
        heads, tensors={name: random_tensor(name, shape, seed, dtype) for name, shape in shapes.items()}
    )


def frequent_ids(vocab: int, count: int, seed: int = 0) -> tuple[int, ...]:
    """`count` of the target's ids in ascending order, as training picks the most frequent ones."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(sorted(torch.randperm(vocab, generator=generator)[:count].tolist()))


def random_tensor(name: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Values that the name, the shape and the seed decide."""
    generator = torch.Generator().manual_seed((zlib.crc32(name.encode()) + seed * 0x9E3779B1) % 2**32)
    noise = torch.randn(shape, generator=generator)
    if "norm" in name:
        noise = 1 + 0.2 * noise
    elif name.endswith(".bias"):
        noise = 0.3 * noise
    else:
        is_vocabulary = name.startswith(("embed_tokens", "lm_head"))
        noise *= (4.0 if is_vocabulary else 2.0) / math.sqrt(shape[1])
    return noise.to(dtype)


def eagle_shapes(head: TinyEagle) -> Shapes:
    """Names and shapes of all the tensors of a head."""
    hidden, wide = head.hidden, head.target_hidden
    joined = len(head.aux) * wide if head.is_eagle3 else hidden + wide
    yield "fc.weight", (hidden, joined)
    if head.fc_bias:
        yield "fc.bias", (hidden,)
    if head.fc_norm:
        yield from ((f"fc_norm.{number}.weight", (wide,)) for number in range(len(head.aux)))
    if head.norm_before_fc:
        yield "input_norm.weight", (joined,)
    if head.para_norm or head.extra_norms:
        yield "embedding_layernorm.weight", (hidden,)
    if head.para_norm:
        yield "hidden_states_layernorm.weight", (wide,)
    for layer in range(head.layers):
        yield from ((f"layers.{layer}.{name}", shape) for name, shape in _layer_shapes(head, layer))
    if head.is_eagle3 or head.extra_norms:
        yield "norm.weight", (hidden,)
    if head.own_head:
        yield "lm_head.weight", (head.rows, hidden)
    if head.own_embedding:
        yield "embed_tokens.weight", (head.vocab, hidden)


def _layer_shapes(head: TinyEagle, layer: int) -> Shapes:
    hidden, inner = head.hidden, head.intermediate
    is_joined = head.is_eagle3 and layer == 0
    inputs = 2 * hidden if is_joined else hidden
    q_width, kv_width = head.heads * head.head_dim, head.kv_heads * head.head_dim
    if layer > 0 or head.is_eagle3 or head.extra_norms:
        yield "input_layernorm.weight", (hidden,)
    if is_joined:
        yield "hidden_norm.weight", (hidden,)
    for name, outputs in (("q", q_width), ("k", kv_width), ("v", kv_width)):
        yield f"self_attn.{name}_proj.weight", (outputs, inputs)
        if head.qkv_bias:
            yield f"self_attn.{name}_proj.bias", (outputs,)
        if head.qk_norm and name != "v":
            yield f"self_attn.{name}_norm.weight", (head.head_dim,)
    yield "self_attn.o_proj.weight", (hidden, q_width)
    if head.o_bias:
        yield "self_attn.o_proj.bias", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    for name, outputs, width in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
        yield f"mlp.{name}_proj.weight", (outputs, width)
        if head.mlp_bias:
            yield f"mlp.{name}_proj.bias", (outputs,)


def _medusa_shapes(heads: TinyMedusa) -> Shapes:
    for number in range(heads.num_heads):
        for block in range(heads.blocks):
            yield f"blocks.{number}.{block}.weight", (heads.hidden, heads.hidden)
            if heads.has_bias:
                yield f"blocks.{number}.{block}.bias", (heads.hidden,)
        if number == 0 or not heads.shares_head:
            yield f"lm_heads.{number}.weight", (heads.rows, heads.hidden)
