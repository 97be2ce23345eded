"""A trainable EAGLE-3 head in plain torch: several steps over whole texts at once.

Step 0 reads the target's hidden states at every pair. Step s reads what step s - 1 put out one pair earlier, as if the
head had been proposing for s tokens: attention sees the true pairs up to n - s, and one node of each step in between.

Source    EAGLE-3, arXiv:2503.01840, section 3.2 (training-time test)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear, pad, rms_norm, silu

from tspec.checkpoint.head_tensors import D2T, head_tensors
from tspec.core.head_config import EagleConfig

ROUND = 32
"""Pairs of a text come to attention in multiples of this: see `hidden.ROUND`."""

SELF_SCORE = 13.5
"""Mean score of a token with itself where a head starts by looking at tokens: enough that it outweighs the others."""

_LAYER = "layers.0"


@dataclass(frozen=True, slots=True)
class Span:
    """Where a text's pairs are among those of a batch: from `start` to `end`, and taught from `first` on."""

    start: int
    first: int
    end: int


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

    def forward(
        self, aux: torch.Tensor, embedded: torch.Tensor, spans: Sequence[Span], num_steps: int
    ) -> list[torch.Tensor]:
        """What each step puts out at taught pairs, [taught pairs, hidden] each.

        What it puts out at a text's first `step` taught pairs has no meaning: no chain begins early enough.
        aux        [pairs, aux layers * hidden], pairs of all texts one after the other
        embedded   [pairs, hidden]
        spans      of each text, without gaps
        """
        taught = torch.cat([torch.arange(each.first, each.end) for each in spans]).to(embedded.device)
        turns = _turns(self.config, spans, embedded.device)
        token = self._norm(embedded, f"{_LAYER}.input_layernorm")
        hidden = linear(aux.to(embedded.dtype), self._at("fc"))
        read = self._read(token, hidden)
        seen = [self._keys_and_values(read, turns)]
        # Of pairs that teach nothing, as those of the prompt, only keys and values are of use.
        token, hidden, read = (each.index_select(0, taught) for each in (token, hidden, read))
        turns = turns[0][taught], turns[1][taught]
        put_out: list[torch.Tensor] = []
        for step in range(num_steps):
            if step:
                hidden = _behind(hidden, 1)  # each pair reads what the one before it put out
                read = self._read(token, hidden)
                seen.append(self._keys_and_values(read, turns))
            attended = _attend(self._queries(read, turns), seen, spans)
            hidden = hidden + linear(attended, self._at(f"{_LAYER}.self_attn.o_proj"))
            hidden = hidden + self._mlp(self._norm(hidden, f"{_LAYER}.post_attention_layernorm"))
            put_out.append(hidden)
        return put_out

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits [rows, head's vocabulary] of what a step put out, [rows, hidden]."""
        return linear(self._norm(rows, "norm"), self._at("lm_head"))

    def _at(self, name: str) -> torch.Tensor:
        return self._parameters_by_name[f"{name}.weight".replace(".", "/")]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x.float(), x.shape[-1:], self._at(name), self.config.layer.rms_eps)

    def _read(self, token: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """What the layer's attention reads, [pairs, 2 * hidden]."""
        return torch.cat([token, self._norm(hidden, f"{_LAYER}.hidden_norm")], dim=-1)

    def _heads(self, read: torch.Tensor, name: str, turns: Any = None) -> torch.Tensor:
        """Heads of q, k or v, [pairs, heads, head dim]; turned by position where `turns` is given."""
        heads = linear(read, self._at(f"{_LAYER}.self_attn.{name}_proj"))
        heads = heads.unflatten(-1, (-1, self.config.layer.head_dim))
        if turns is None:
            return heads
        if self.config.layer.has_qk_norm:
            heads = self._norm(heads, f"{_LAYER}.self_attn.{name}_norm").to(heads.dtype)
        return _turn(heads, turns).to(heads.dtype)

    def _queries(self, read: torch.Tensor, turns: Any) -> torch.Tensor:
        """[kv heads, pairs, heads of a kv head, head dim]."""
        heads = self._heads(read, "q", turns)
        return heads.unflatten(1, (-1, self.config.layer.group_size)).transpose(0, 1)

    def _keys_and_values(self, read: torch.Tensor, turns: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """[kv heads, pairs, head dim] each."""
        return self._heads(read, "k", turns).transpose(0, 1), self._heads(read, "v").transpose(0, 1)

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = (linear(x, self._at(f"{_LAYER}.mlp.{name}_proj")) for name in ("gate", "up"))
        return linear(silu(gate) * up, self._at(f"{_LAYER}.mlp.down_proj"))


@torch.no_grad()
def start_from_target(head: EagleHead, model: Any, kept: torch.Tensor) -> None:
    """Give the head the target's last layer, final norm and rows of its output layer, and let `fc` pass the last aux.

    Of several KV heads the first looks at the token instead (`_look_at_token`); what else reads the token's embedding
    starts at 0. Of a wider MLP, those units stay whose weights are largest.
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
    if head.config.layer.num_kv_heads > 1:
        _look_at_token(ours, head, model.model.embed_tokens.weight[kept.to(model.lm_head.weight.device)])


def _look_at_token(ours: dict[str, torch.nn.Parameter], head: EagleHead, embedded: torch.Tensor) -> None:
    """Let the first KV head and its queries see a pair's own token, and those like it, by its embedding alone.

    The token is what the hidden states do not have, and a head that has to find it first learns it late. Queries and
    keys are the same directions of the embedding, in which tokens differ most, so that each token matches itself;
    values are these directions as well. What the values are good for is left to training: it starts at 0.
    embedded   [head's vocabulary, hidden]
    """
    layer = head.config.layer
    size, width = layer.head_dim, layer.hidden_size
    normed = rms_norm(embedded.float(), (width,))
    away = normed - normed.mean(dim=0)
    directions = torch.linalg.eigh(away.T @ away).eigenvectors.flip(-1).T[:size]  # [at most head dim, hidden]
    length = (away @ directions.T).square().sum(dim=1).mean().sqrt()
    matching = directions * (SELF_SCORE * size**0.5) ** 0.5 / length
    for name, heads in (("q", layer.group_size), ("k", 1)):
        rows = ours[f"self_attn.{name}_proj.weight"][: heads * size].zero_().view(heads, size, 2 * width)
        rows[:, : len(matching), :width] = matching
    values = ours["self_attn.v_proj.weight"][:size].zero_()
    values[: len(directions), :width] = directions
    ours["self_attn.o_proj.weight"][:, : layer.group_size * size] = 0


def _turns(
    config: EagleConfig, spans: Sequence[Span], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [pairs, 1, head dim / 2] of rotary positions."""
    half = config.layer.head_dim // 2
    speeds = config.layer.rope.base ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    places = torch.cat([torch.arange(each.end - each.start) for each in spans]).to(device)
    angles = places[:, None, None] * speeds
    return angles.cos(), angles.sin()


def _turn(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = turns
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _behind(x: torch.Tensor, by: int) -> torch.Tensor:
    """Rows [rows, ...] moved down, with zeros before; what a text's first rows get has no meaning."""
    return pad(x[: len(x) - by], (0, 0) * (x.dim() - 1) + (by, 0)) if by else x


def _round_up(x: torch.Tensor) -> torch.Tensor:
    """`x` [kv heads, pairs, ...] with zeros behind, up to a multiple of ROUND pairs."""
    return pad(x, (0, 0) * (x.dim() - 2) + (0, -x.shape[1] % ROUND))


def _attend(
    q: torch.Tensor, seen: Sequence[tuple[torch.Tensor, torch.Tensor]], spans: Sequence[Span]
) -> torch.Tensor:
    """Attention of the newest step, [taught pairs, heads * head dim]: pair n sees keys of step 0 up to n - step, and of
    each later step t the one at n - step + t, which is its own chain.

    q       [kv heads, taught pairs, heads of a kv head, head dim]
    seen    keys and values of each step so far, [kv heads, pairs, head dim]: of all pairs, and in later steps of taught
            ones
    """
    step, q = len(seen) - 1, q * q.shape[-1] ** -0.5
    chain = [
        [_behind(each.transpose(0, 1), step - at).transpose(0, 1)[:, :, None] for each in seen[at]]
        for at in range(1, step + 1)
    ]
    own = torch.stack([(q * k).sum(-1) for k, _ in chain], -1) if chain else q[..., :0]
    num_taught, num_pairs = [s.end - s.first for s in spans], [s.end - s.start for s in spans]
    mixed, weights = [], []
    parts = zip(
        spans, q.split(num_taught, 1), own.split(num_taught, 1),
        seen[0][0].split(num_pairs, 1), seen[0][1].split(num_pairs, 1), strict=True,
    )  # fmt: skip
    for span, *here in parts:
        num_here = here[0].shape[1]
        q_here, own_here, k, v = map(_round_up, here)
        is_seen = torch.ones(q_here.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
        is_seen = is_seen.tril(span.first - span.start - step)[:, None]
        scores = (q_here.flatten(1, 2) @ k.transpose(1, 2)).unflatten(1, q_here.shape[1:3])
        scores = torch.cat([scores.masked_fill(~is_seen, float("-inf")), own_here], -1)
        of_text, of_chain = scores.softmax(-1).to(v.dtype).split([k.shape[1], step], -1)
        mixed.append((of_text.flatten(1, 2) @ v).unflatten(1, q_here.shape[1:3])[:, :num_here])
        weights.append(of_chain[:, :num_here])
    both, of_chain = torch.cat(mixed, 1), torch.cat(weights, 1)
    for at, (_, v) in enumerate(chain):
        both = both + of_chain[..., at, None] * v
    return both.transpose(0, 1).flatten(1)
