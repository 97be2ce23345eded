"""Draft heads in plain torch: no cache, no kernels, all computed anew from the whole text. No code of tspec's.

Position n of a head's text pairs the target's hidden state of position n with the token at n + 1; the newest token has
no hidden state yet and takes part through its embedding alone.

Source    arXiv:2401.15077 (EAGLE), 2406.16858 (EAGLE-2), 2503.01840 (EAGLE-3), 2401.10774 (Medusa), and their authors'
          published code, read for the order of norms and residuals
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from support.tiny_heads import TinyEagle, TinyMedusa
from torch.nn.functional import linear, silu


@dataclass(frozen=True)
class TargetStates:
    """What heads read of a target: hidden states of n tokens, embedding [V, H], output head [V, H].

    by_layer  [n, H] for each of L + 1: what enters layer l; the last one leaves the last layer, before the final norm
    normed    [n, H] after the final norm
    """

    by_layer: Sequence[torch.Tensor]
    normed: torch.Tensor
    embedding: torch.Tensor
    lm_head: torch.Tensor


@torch.no_grad()
def observe_target(model: Any, tokens: Sequence[int]) -> TargetStates:
    """Run a transformers model of the llama kind over tokens, once, and keep what heads read."""
    inputs, before_norm = [], []

    def keep(to: list[torch.Tensor]) -> Any:
        return lambda module, args, kwargs: to.append(
            (args[0] if args else kwargs["hidden_states"])[0].clone()
        )

    hooks = [layer.register_forward_pre_hook(keep(inputs), with_kwargs=True) for layer in model.model.layers]
    hooks.append(model.model.norm.register_forward_pre_hook(keep(before_norm), with_kwargs=True))
    normed = model.model(torch.tensor([list(tokens)])).last_hidden_state[0]
    for hook in hooks:
        hook.remove()
    return TargetStates(
        [*inputs, *before_norm],
        normed,
        model.model.embed_tokens.weight.detach(),
        model.lm_head.weight.detach(),
    )


def eagle_logits(
    head: TinyEagle,
    target: TargetStates,
    tokens: Sequence[int],
    path: Sequence[int] = (),
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Logits [rows] of an EAGLE head after the last of `tokens`, or after a path of candidates that follow it.

    tokens  committed ones, at least 2; hidden states of all but the last are read, more of them are ignored
    path    candidates in the target's ids: beyond the committed text the head reads its own output
    """
    weights = {name: value.to(dtype) for name, value in head.tensors.items()}
    embedding = weights.get("embed_tokens.weight", target.embedding.to(dtype))
    known = len(tokens) - 1
    embedded = embedding[torch.tensor([*tokens[1:], *path])]
    hidden = _from_target(head, weights, target, known, dtype)
    for length in range(known, known + len(path) + 1):
        put_out = _layers(head, weights, embedded[:length], hidden)[-1:]
        normed = _norm(put_out, weights["norm.weight"], head) if "norm.weight" in weights else put_out
        hidden = torch.cat([hidden, normed if head.norm_output else put_out])
    lm_head = weights.get("lm_head.weight", target.lm_head.to(dtype))
    return linear(normed, lm_head)[0]


def medusa_logits(
    heads: TinyMedusa, normed: torch.Tensor, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Logits [num_heads, rows] from the target's hidden state [H] after its final norm."""
    rows = []
    for number in range(heads.num_heads):
        hidden = normed.to(dtype)
        for block in range(heads.blocks):
            bias = heads.tensors.get(f"blocks.{number}.{block}.bias")
            weight = heads.tensors[f"blocks.{number}.{block}.weight"].to(dtype)
            hidden = hidden + silu(linear(hidden, weight, None if bias is None else bias.to(dtype)))
        lm_head = heads.tensors[f"lm_heads.{0 if heads.shares_head else number}.weight"]
        rows.append(linear(hidden, lm_head.to(dtype)))
    return torch.stack(rows)


def _from_target(
    head: TinyEagle, weights: dict[str, torch.Tensor], target: TargetStates, known: int, dtype: torch.dtype
) -> torch.Tensor:
    """The hidden states [known, hidden] that the layers of an EAGLE-3 head read; EAGLE-1 joins them later."""
    if not head.is_eagle3:
        return target.normed[:known].to(dtype)
    each = [target.by_layer[layer][:known].to(dtype) for layer in head.aux]
    if head.fc_norm:
        each = [_norm(x, weights[f"fc_norm.{number}.weight"], head) for number, x in enumerate(each)]
    joined = torch.cat(each, dim=-1)
    if head.norm_before_fc:
        joined = _norm(joined, weights["input_norm.weight"], head)
    return linear(joined, weights["fc.weight"], weights.get("fc.bias"))


def _layers(
    head: TinyEagle, weights: dict[str, torch.Tensor], embedded: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """What the layers put out [n, hidden] for n pairs of an embedding and a hidden state."""
    first = {name.removeprefix("layers.0."): value for name, value in weights.items()}
    if head.is_eagle3:
        normed = _norm(hidden, first["hidden_norm.weight"], head)
        residual = normed if head.norm_before_residual else hidden
        attended = torch.cat([_norm(embedded, first["input_layernorm.weight"], head), normed], dim=-1)
    else:
        if "embedding_layernorm.weight" in weights:
            embedded = _norm(embedded, weights["embedding_layernorm.weight"], head)
        if "hidden_states_layernorm.weight" in weights:
            hidden = _norm(hidden, weights["hidden_states_layernorm.weight"], head)
        both = torch.cat([embedded, hidden], dim=-1)
        attended = residual = linear(both, weights["fc.weight"], weights.get("fc.bias"))
        if "input_layernorm.weight" in first:
            attended = _norm(residual, first["input_layernorm.weight"], head)
    x = _rest_of_layer(head, first, residual, attended)
    for layer in range(1, head.layers):
        part = {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items()}
        x = _rest_of_layer(head, part, x, _norm(x, part["input_layernorm.weight"], head))
    return x


def _rest_of_layer(
    head: TinyEagle, part: dict[str, torch.Tensor], residual: torch.Tensor, attended: torch.Tensor
) -> torch.Tensor:
    x = residual + _attention(head, part, attended)
    inner = _norm(x, part["post_attention_layernorm.weight"], head)
    gate, up = (
        linear(inner, part[f"mlp.{n}_proj.weight"], part.get(f"mlp.{n}_proj.bias")) for n in ("gate", "up")
    )
    return x + linear(silu(gate) * up, part["mlp.down_proj.weight"], part.get("mlp.down_proj.bias"))


def _attention(head: TinyEagle, part: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Causal attention over all rows of x, grouped queries, rotary positions 0, 1, …"""
    length = len(x)
    q, k, v = (
        linear(x, part[f"self_attn.{n}_proj.weight"], part.get(f"self_attn.{n}_proj.bias"))
        .view(length, -1, head.head_dim)
        .transpose(0, 1)
        for n in ("q", "k", "v")
    )
    if head.qk_norm:
        q, k = (_norm(y, part[f"self_attn.{n}_norm.weight"], head) for n, y in (("q", q), ("k", k)))
    q, k = _rotate(q, head.rope_base), _rotate(k, head.rope_base)
    group = head.heads // head.kv_heads
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    is_seen = (distance >= 0) & (distance < (head.window or length))
    scores = (q @ k.transpose(1, 2) / head.head_dim**0.5).masked_fill(~is_seen, -torch.inf)
    mixed = (scores.softmax(dim=-1) @ v).transpose(0, 1).reshape(length, -1)
    return linear(mixed, part["self_attn.o_proj.weight"], part.get("self_attn.o_proj.bias"))


def _rotate(x: torch.Tensor, base: float) -> torch.Tensor:
    """Turn each pair (n, n + half) of a head's elements by position * base ** (-n / half)."""
    half = x.shape[-1] // 2
    speeds = base ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * speeds
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)


def _norm(x: torch.Tensor, scale: torch.Tensor, head: TinyEagle) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + head.rms_eps) * scale
