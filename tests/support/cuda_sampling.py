"""Logits of every awkward kind, requests over them, and one launch of each kernel between logits and tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch

from tspec.core.noise import TARGET, gumbel
from tspec.kernels.cuda import draw_draft, edit_logits, kept, logprobs, sample
from tspec.kernels.cuda.launch import Scratch
from tspec.kernels.reference import REFERENCES

NAN, INF = float("nan"), float("inf")
Tensors = Sequence[torch.Tensor]

SIZES = (
    {"GROUPS": 32, "GATHERED_RANK": 8, "MAX_GATHERED": 64, "BLOCK": 32},
    {"GROUPS": 16, "GATHERED_RANK": 4, "MAX_GATHERED": 16, "BLOCK": 64},
)
"""Small sizes for `find_kept`: with the first most rows gather few tokens, with the second many are swept whole."""


def hard_logits(batch: int, rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    """Rows in turns: apart, equal by groups, all equal, one huge, with NaN, with -inf, one number, none, both zeros."""
    table = torch.randn(batch * rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    table[1::9] = (table[1::9] / 2).round()
    table[2::9] = table[2::9, :1]
    table[3::9, vocab // 2] = 1e30
    table[4::9, ::2] = NAN
    table[5::9, : vocab // 2] = -INF
    table[6::9] = -INF
    table[6::9, -1] = 0.5
    table[7::9] = torch.where(table[7::9] > 0, NAN, -INF)
    table[8::9] = torch.where(table[8::9] > 2, 0.0, -0.0)
    return table.view(batch, rows, vocab)


def numbers(*values: float) -> torch.Tensor:
    """float32"""
    return torch.tensor(values, dtype=torch.float32)


def whole(*values: int) -> torch.Tensor:
    """int32"""
    return torch.tensor(values, dtype=torch.int32)


def make_scratch(size_bytes: int) -> Scratch:
    """Just as much as is needed; what lies there first is NaN."""
    return Scratch(torch.full((max(size_bytes // 4, 1),), NAN), None)


@contextmanager
def small_blocks(vocab_block: int = 16) -> Iterator[None]:
    """Blocks so small that a small vocabulary has several, the last one ragged."""
    with (
        patch.object(sample, "BLOCK", vocab_block),
        patch.object(edit_logits, "BLOCK", vocab_block),
        patch.object(draw_draft, "BLOCK", vocab_block),
        patch.object(logprobs, "GROUPS", vocab_block),
    ):
        yield


def run_sample(logits: torch.Tensor, *request: torch.Tensor | None) -> torch.Tensor:
    """The tokens of the kernel; `request` is what `sample` takes after the logits."""
    batch, rows, vocab = logits.shape
    out = torch.full((batch, rows), -7, dtype=torch.int32)
    scratch = make_scratch(sample.scratch_bytes(batch * rows, vocab).partials)
    sample.sample(out, logits, *request, scratch=scratch)
    return out


def run_kept(logits: torch.Tensor, *request: torch.Tensor) -> Tensors:
    """threshold, first_tie and log_sum of the kernel."""
    batch, rows, vocab = logits.shape
    outs = [
        torch.full((batch, rows), NAN),
        torch.full((batch, rows), -7).int(),
        torch.full((batch, rows), NAN),
    ]
    scratch = make_scratch(kept.scratch_bytes(batch * rows, vocab).partials)
    kept.find_kept(*outs, logits, *request, scratch=scratch)
    return outs


def run_logprobs(
    logits: torch.Tensor, chosen: torch.Tensor, *others: torch.Tensor | None, most: int
) -> Tensors:
    """logprobs, top_tokens and top_logprobs of the kernel."""
    shape = chosen.shape
    outs = [torch.full(shape, NAN), torch.full((*shape, most), -7).int(), torch.full((*shape, most), NAN)]
    logprobs.token_logprobs(*outs, logits, chosen, *others, most=most)
    return outs


def assert_sampled(found: torch.Tensor, logits: torch.Tensor, *request: torch.Tensor | None) -> None:
    """Hold tokens against the reference: the same, or so near to it in float64 that rounding to float32 decides."""
    (want,) = REFERENCES["sample"]({}, logits, *request)
    temperature, seed, prefix_len, depth, num_nodes = request[:5]
    rows = logits.shape[1]
    for batch, row in (found != want).nonzero().tolist():
        node = row if rows > 1 else int(num_nodes[batch]) - 1
        tokens = [int(each[batch, row]) for each in (found, want)]
        assert min(tokens) >= 0 and temperature[batch] > 0, (batch, row, tokens)
        scores = (logits[batch, row, tokens] / temperature[batch]).double()
        position = int(prefix_len[batch] + depth[batch, node]) + 1
        first, second = scores + torch.from_numpy(
            gumbel(int(seed[batch]), position, TARGET, np.array(tokens))
        )
        assert abs(first - second) <= 8 * 2**-24 * max(abs(float(second)), 32), (batch, row, tokens)
