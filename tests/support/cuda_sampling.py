"""Logits of every awkward kind, requests over them, and one launch of each kernel between logits and tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from support.acceptance_cases import ORDER, Operands, as_tensors, reference_verdict
from support.kernel_case import random_trees

from tspec.core.noise import TARGET, gumbel
from tspec.core.sampling import EDIT_BIAS, EDIT_MASK, EDIT_PENALTIES
from tspec.core.shapes import mask_words
from tspec.core.tree import fill_ancestors
from tspec.kernels.cuda import draw_draft, edit_logits, kept, logprobs, sample
from tspec.kernels.cuda.accept_ratio import accept_ratio
from tspec.kernels.cuda.launch import Scratch
from tspec.kernels.reference import REFERENCES

NAN, INF = float("nan"), float("inf")
Tensors = Sequence[torch.Tensor]

ALL_EDITS = EDIT_BIAS | EDIT_PENALTIES | EDIT_MASK
UNTOUCHED = 77
"""What outputs hold before a launch."""

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


def edit_operands(counts: Sequence[int], vocab: int, rows: int, seed: int) -> list[torch.Tensor]:
    """Operands after the logits, for trees of `counts` nodes and any edits; tokens of trees repeat."""
    generator = np.random.default_rng(seed)
    trees, batch = random_trees(counts, seed), len(counts)
    nodes = trees.tokens.shape[1]
    ancestors, depth = np.zeros((batch, nodes), np.int64), np.zeros((batch, nodes), np.int32)
    fill_ancestors(trees.parents, trees.num_nodes, ancestors, depth)
    penalties = np.stack([generator.choice([1.0, 1.3, 0.8], batch), *generator.uniform(-2, 2, (2, batch))], 1)
    arrays = (
        generator.integers(0, ALL_EDITS + 1, batch).astype(np.int32),
        penalties.astype(np.float32),
        generator.integers(0, 5, (batch, vocab)).astype(np.int32),
        generator.normal(size=(batch, vocab)).astype(np.float32),
        generator.integers(-(2**31), 2**31, (batch, nodes if rows > 1 else 1, mask_words(vocab))).astype(
            np.int32
        ),
        generator.integers(0, min(vocab, 5), (batch, nodes)).astype(np.int32),
        ancestors,
        np.array(trees.num_nodes, np.int32),
    )
    return [torch.from_numpy(each) for each in arrays]


def run_edits(logits: torch.Tensor, operands: Tensors) -> torch.Tensor:
    """The edited logits of the kernel."""
    out = torch.full_like(logits, UNTOUCHED)
    edit_logits.edit_logits(out, logits, *operands)
    return out


def assert_edited(found: torch.Tensor, logits: torch.Tensor, operands: Tensors) -> None:
    """Live rows have the reference's bits; rows of padding are as they were."""
    (want,) = REFERENCES["edit_logits"]({}, logits, *operands)
    rows = logits.shape[1]
    for batch, count in enumerate(operands[-1].tolist()):
        live = count if rows > 1 else min(count, 1)
        assert torch.equal(found[batch, :live], want[batch, :live])
        assert (found[batch, live:] == UNTOUCHED).all()


def run_accept_ratio(found: Operands, device: torch.device | str = "cpu") -> Tensors:
    """out_tokens, num_out and path of the kernel on `device`, brought back."""
    tensors = {
        name: None if tensor is None else tensor.to(device) for name, tensor in as_tensors(found).items()
    }
    outs = [
        torch.full(found[like].shape, UNTOUCHED, dtype=torch.int32, device=device)
        for like in ("tokens", "num_nodes", "tokens")
    ]
    accept_ratio(*outs, *(tensors[name] for name in ORDER))
    return [each.cpu() for each in outs]


def assert_judged(found: Operands, device: torch.device | str = "cpu") -> Tensors:
    """Hold the kernel's verdict against the reference's, which is returned."""
    expected = reference_verdict(found)
    names = ("out_tokens", "num_out", "path")
    for name, result, reference in zip(names, run_accept_ratio(found, device), expected, strict=True):
        assert torch.equal(result, reference), f"{name}: got {result}, need {reference}"
    return expected
