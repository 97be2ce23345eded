"""A trainable EAGLE-3 head in plain torch: several steps over whole texts at once.

Step 0 reads the target's hidden states at every pair. Step s reads what step s - 1 put out one pair earlier, as if the
head had been proposing for s tokens: attention sees the true pairs up to n - s, and one node of each step in between.

Source    EAGLE-3, arXiv:2503.01840, section 3.2 (training-time test)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import linear, pad, rms_norm, scaled_dot_product_attention, silu

from tspec.checkpoint.head_tensors import D2T, head_tensors
from tspec.core.head_config import EagleConfig

QUERIES_AT_A_TIME = 128
"""Pairs of a later step whose attention is computed together: fewer see fewer keys in vain, more call less often."""

_LAYER = "layers.0"


class EagleHead(torch.nn.Module):
    """The parameters of a head by their names in a checkpoint, float32, and its steps."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        shapes = {name: shape for name, shape in head_tensors(config).items() if name != D2T}
        # Names in a ParameterDict may have no dots.
        self._parameters_by_name = torch.nn.ParameterDict(
            {name.replace(".", "/"): torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
        )

    def tensors(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by their names in a checkpoint."""
        return {name.replace("/", "."): value for name, value in self._parameters_by_name.items()}

    def forward(self, aux: torch.Tensor, embedded: torch.Tensor, num_steps: int) -> list[torch.Tensor]:
        """What each step puts out, [texts, pairs, hidden] each.

        aux        [texts, pairs, aux layers * hidden]
        embedded   [texts, pairs, hidden]
        """
        pairs = embedded.shape[1]
        turns = _turns(self.config, pairs, embedded.device)
        token = self._norm(embedded, f"{_LAYER}.input_layernorm")
        hidden, put_out = linear(aux.to(embedded.dtype), self._at("fc")), []
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(num_steps):
            q, k, v = self._qkv(token, hidden, turns)
            seen.append((k, v))
            attended = _attend(q, seen)
            hidden = hidden + linear(attended, self._at(f"{_LAYER}.self_attn.o_proj"))
            hidden = hidden + self._mlp(self._norm(hidden, f"{_LAYER}.post_attention_layernorm"))
            put_out.append(hidden)
            hidden = pad(hidden[:, :-1], (0, 0, 1, 0))  # each pair reads what the one before it put out
        return put_out

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits [rows, head's vocabulary] of what a step put out, [rows, hidden]."""
        return linear(self._norm(rows, "norm"), self._at("lm_head"))

    def _at(self, name: str) -> torch.Tensor:
        return self._parameters_by_name[f"{name}.weight".replace(".", "/")]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x.float(), x.shape[-1:], self._at(name), self.config.layer.rms_eps)

    def _qkv(self, token: torch.Tensor, hidden: torch.Tensor, turns: Any) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values, [texts, heads, pairs, head dim] each; keys and values as many as queries."""
        both = torch.cat([token, self._norm(hidden, f"{_LAYER}.hidden_norm")], dim=-1)
        layer, (texts, pairs, _) = self.config.layer, both.shape
        q, k, v = (
            linear(both, self._at(f"{_LAYER}.self_attn.{name}_proj"))
            .view(texts, pairs, -1, layer.head_dim)
            .transpose(1, 2)
            for name in "qkv"
        )
        if layer.has_qk_norm:
            q = self._norm(q, f"{_LAYER}.self_attn.q_norm")
            k = self._norm(k, f"{_LAYER}.self_attn.k_norm")
        q, k = _turn(q, turns).to(v.dtype), _turn(k, turns).to(v.dtype)
        return q, k.repeat_interleave(layer.group_size, 1), v.repeat_interleave(layer.group_size, 1)

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = (linear(x, self._at(f"{_LAYER}.mlp.{name}_proj")) for name in ("gate", "up"))
        return linear(silu(gate) * up, self._at(f"{_LAYER}.mlp.down_proj"))


@torch.no_grad()
def start_from_target(head: EagleHead, model: Any, kept: torch.Tensor) -> None:
    """Give the head the target's last layer, final norm and rows of its output layer, and let `fc` pass the last aux.

    What reads the token's embedding starts at 0. Of a wider MLP, those units stay whose weights are largest.
    kept    [head's vocabulary] int64, the target's ids of the head's tokens
    """
    layer, tensors = model.model.layers[-1], head.tensors()
    width = head.config.layer.hidden_size
    ours = {name.removeprefix(f"{_LAYER}."): value for name, value in tensors.items()}
    ours["input_layernorm.weight"].fill_(1.0)
    ours["hidden_norm.weight"].copy_(layer.input_layernorm.weight)
    for name in "qkv":
        ours[f"self_attn.{name}_proj.weight"][:, width:].copy_(
            getattr(layer.self_attn, f"{name}_proj").weight
        )
    theirs = dict(layer.named_parameters())
    for name in ("self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm"):
        if f"{name}.weight" in ours:
            ours[f"{name}.weight"].copy_(theirs[f"{name}.weight"])
    gate, up, down = (theirs[f"mlp.{name}_proj.weight"].float() for name in ("gate", "up", "down"))
    size = head.config.layer.intermediate_size
    importance = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
    units = importance.topk(min(size, len(importance))).indices.sort().values
    for name, value in (("gate", gate[units]), ("up", up[units])):
        ours[f"mlp.{name}_proj.weight"][: len(units)].copy_(value)
    ours["mlp.down_proj.weight"][:, : len(units)].copy_(down[:, units])
    tensors["fc.weight"][:, -width:].copy_(torch.eye(width))
    tensors["norm.weight"].copy_(model.model.norm.weight)
    tensors["lm_head.weight"].copy_(model.lm_head.weight[kept.to(model.lm_head.weight.device)])


def _turns(config: EagleConfig, pairs: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [pairs, head dim / 2] of rotary positions."""
    half = config.layer.head_dim // 2
    speeds = config.layer.rope.base ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angles = torch.arange(pairs, device=device, dtype=torch.float32)[:, None] * speeds
    return angles.cos(), angles.sin()


def _turn(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = turns
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _attend(q: torch.Tensor, seen: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attention of the newest step, [texts, pairs, heads * head dim]: pair n sees keys of step 0 up to n - step, and of
    each later step t the one at n - step + t, which is its own chain.

    q and what was seen: [texts, heads, pairs, head dim]; `seen` has keys and values of each step so far.
    """
    pairs, step = q.shape[2], len(seen) - 1
    if step == 0:
        mixed = scaled_dot_product_attention(q, *seen[0], is_causal=True)
    else:
        starts = range(0, pairs, QUERIES_AT_A_TIME)
        ends = [min(start + QUERIES_AT_A_TIME, pairs) for start in starts]
        mixed = torch.cat(
            [_attend_some(q, seen, start, end) for start, end in zip(starts, ends, strict=True)], 2
        )
    return mixed.transpose(1, 2).flatten(2)


def _attend_some(
    q: torch.Tensor, seen: Sequence[tuple[torch.Tensor, torch.Tensor]], start: int, end: int
) -> torch.Tensor:
    """As `_attend` for pairs from start to end: of later steps only the few keys that these can see."""
    step, places = len(seen) - 1, torch.arange(end, device=q.device)
    ranges = [
        (0 if at == 0 else max(start - step + at, 0), max(end - step + at, 0)) for at in range(step + 1)
    ]
    k, v = (
        torch.cat([each[part][:, :, low:high] for each, (low, high) in zip(seen, ranges, strict=True)], 2)
        for part in (0, 1)
    )
    behind = [places[start:end, None] - places[low:high] for low, high in ranges]
    is_seen = [behind[0] >= step, *(behind[at] == step - at for at in range(1, step + 1))]
    return scaled_dot_product_attention(q[:, :, start:end], k, v, attn_mask=torch.cat(is_seen, dim=1))
