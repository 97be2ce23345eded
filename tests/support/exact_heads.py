"""Heads that are never wrong about a table model (support/table_model.py): every candidate has to be accepted.

Each comes in two kinds, which say the same and read different things: the token, or the hidden state alone, which then
has to be the right one at each step. Shares no code with tspec.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from support.tiny_heads import TinyEagle, TinyMedusa, eagle_shapes

_HEAD_DIM = 16
_PEAK = 100.0
"""Makes attention see a node's own position alone: scores differ by thousands times 1 - cos(distance)."""


def full_table(next_token: Mapping[int, int], vocab: int) -> list[int]:
    """What the table model says after each token."""
    return [next_token.get(token, (token + 1) % vocab) for token in range(vocab)]


def exact_eagle1(table: Sequence[int], *, reads: str = "token") -> TinyEagle:
    """EAGLE-1 without attention and MLP: what fc passes on is the one-hot row of the newest token."""
    vocab = len(table)
    steps = {
        "token": (torch.eye(vocab), 0 * torch.eye(vocab)),
        "hidden": (0 * torch.eye(vocab), _step(table)),
    }
    head = TinyEagle(False, vocab, vocab, vocab, head_dim=_HEAD_DIM, intermediate=2)
    return _with_tensors(head, {"fc.weight": torch.cat(steps[reads], dim=1)})


def exact_eagle3(
    table: Sequence[int], aux: Sequence[int], *, reads: str = "token", draft_ids: Sequence[int] | None = None
) -> TinyEagle:
    """EAGLE-3 whose attention moves a one-hot row on; of `aux`, the last has to be what the last layer puts out.

    draft_ids   the target's ids that the head knows; what the table says after those it does not is never guessed
    """
    vocab, eye = len(table), torch.eye(len(table))
    heads = -(-vocab // _HEAD_DIM)
    head = TinyEagle(
        True, vocab, vocab, vocab, heads=heads, kv_heads=heads, head_dim=_HEAD_DIM, intermediate=2, aux=tuple(aux),
        draft_ids=None if draft_ids is None else tuple(draft_ids), qkv_bias=True, norm_before_residual=True,
    )  # fmt: skip
    spread = torch.eye(heads * _HEAD_DIM, vocab)
    of_token, of_hidden = (eye, 0 * eye) if reads == "token" else (0 * eye, _step(table) - eye)
    says = torch.zeros(vocab, vocab)
    says[torch.tensor(table), torch.arange(vocab)] = 1
    tensors = {
        "fc.weight": torch.cat([*(0 * eye for _ in aux[1:]), eye], dim=1),
        "layers.0.hidden_norm.weight": torch.full((vocab,), float(reads == "hidden")),
        "layers.0.self_attn.v_proj.weight": torch.cat([spread @ of_token, spread @ of_hidden], dim=1),
        "layers.0.self_attn.o_proj.weight": spread.T.contiguous(),
        "lm_head.weight": says if draft_ids is None else says[torch.tensor(list(draft_ids))],
        **{f"layers.0.self_attn.{name}_proj.bias": torch.full((heads * _HEAD_DIM,), _PEAK) for name in "qk"},
    }
    return _with_tensors(head, tensors)


def exact_medusa(table: Sequence[int], num_heads: int = 3) -> TinyMedusa:
    """Medusa heads without blocks' effect: head n says what the table says n + 2 steps after a token."""
    vocab = len(table)
    tensors, rows = {}, _step(table)
    for number in range(num_heads):
        rows = _step(table) @ rows
        tensors[f"blocks.{number}.0.weight"] = torch.zeros(vocab, vocab)
        tensors[f"lm_heads.{number}.weight"] = rows.clone()
    return TinyMedusa(num_heads, 1, vocab, vocab, has_bias=False, tensors=tensors)


def _step(table: Sequence[int]) -> torch.Tensor:
    """Moves the one-hot row of a token to that of the one the table says after it."""
    vocab = len(table)
    return torch.eye(vocab)[torch.tensor(table)].T.contiguous()


def _with_tensors(head: TinyEagle, given: Mapping[str, torch.Tensor]) -> TinyEagle:
    """The head with these tensors, norms of 1, and 0 for everything else."""
    tensors = {
        name: given.get(name, torch.ones(shape) if "norm" in name else torch.zeros(shape))
        for name, shape in eagle_shapes(head)
    }
    assert set(given) <= set(tensors), set(given) - set(tensors)
    return replace(head, tensors=tensors)
