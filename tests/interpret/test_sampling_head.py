"""The head samples in its epilogue as `sample` does from its logits in memory, and those are never rounded.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_sampling_head.py
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda_rows import SMALL, Operands, expected, make_operands, make_request, run_kernel, tolerance
from support.cuda_sampling import assert_sampled, run_sample

from tspec.core.errors import ContractError
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cuda.head import norm_head_logits

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TEMPERATURES = (0.0, 1.0, 0.3, 2.0)


def make_head(counts, rows, nodes, vocab, dtype, temperatures=TEMPERATURES, seed=0) -> Operands:
    """Operands of the head over sequences of `counts` live nodes; rows of several tiles where there are many."""
    flat = make_operands("norm_head_sample", len(counts) * rows, vocab, 24, dtype, has_bias=True, seed=seed)
    x = 4 * flat.x.view(len(counts), rows, 24)
    return replace(flat, x=x, request=make_request(counts, nodes, temperatures, seed))


def logits_of(head: Operands, tuned=SMALL) -> torch.Tensor:
    return run_kernel(replace(head, kind=head.kind.replace("sample", "logits")), tuned)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    vocab=st.integers(1, 70),
    is_last=st.booleans(),
    split_k=st.sampled_from((1, 2)),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(("norm_head_sample", "head_sample")),
)
def test_a_row_gets_the_token_that_is_sampled_from_its_logits_in_memory(
    dtype, counts, vocab, is_last, split_k, seed, kind
):
    """The very same token: the same operations in the same order on the same bits."""
    tuned = replace(SMALL, split_k=split_k)
    head = replace(make_head(counts, 1 if is_last else 9, 9, vocab, dtype, seed=seed), kind=kind)
    logits = logits_of(head, tuned)
    found = run_kernel(head, tuned)
    assert torch.equal(found, run_sample(logits, *head.request, None, None))
    assert_sampled(found, logits, *head.request, None, None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("norm", ["norm_", ""])
def test_logits_equal_their_reference_and_are_not_rounded_to_the_rows_dtype(norm, rows, dtype):
    operands = make_operands(f"{norm}head_logits", rows, 70, 40, dtype, has_bias=True)
    found, want = run_kernel(operands), expected(operands)
    assert found.dtype == torch.float32
    assert ((found - want).abs() / want.abs().clamp(min=1)).max() <= tolerance(operands)
    rounded = run_kernel(replace(operands, kind=f"{norm}linear"))
    if dtype != torch.bfloat16:  # which the interpreter cuts off instead of rounding
        assert torch.equal(found.to(dtype), rounded)
    assert dtype == torch.float32 or (found != rounded.float()).any()


def test_greedy_rows_are_not_changed_by_sampled_rows_in_their_tile():
    mixed = make_head([3, 3, 2], 3, 3, 60, torch.float32, (0.0, 1.0, 0.0))
    greedy = replace(mixed, request=(torch.zeros(3), *mixed.request[1:]))
    assert run_kernel(mixed)[[0, 2]].tolist() == run_kernel(greedy)[[0, 2]].tolist()


def test_a_sampled_row_draws_the_same_alone_in_every_tile_and_from_its_last_node():
    head = make_head([9] * 5, 9, 9, 60, torch.float16, (1.0,))
    together = run_kernel(head)
    for sequence in (0, 4):
        cut = slice(sequence, sequence + 1)
        request = [each[cut] for each in head.request]
        assert torch.equal(run_kernel(replace(head, x=head.x[cut], request=request)), together[cut])
        last = replace(head, x=head.x[cut, 6:7].contiguous(), request=[*request[:4], torch.tensor([7]).int()])
        assert run_kernel(last).item() == together[sequence, 6]


def test_other_seeds_and_positions_draw_other_tokens_and_the_same_ones_the_same():
    head = make_head([9] * 5, 9, 9, 60, torch.float32, (2.0,))
    temperature, seed, prefix_len, *others = head.request
    first = run_kernel(head)
    assert torch.equal(run_kernel(head), first)
    for request in ((temperature, seed + 1, prefix_len), (temperature, seed, prefix_len + 1)):
        other = run_kernel(replace(head, request=(*request, *others)))
        assert (other != first).float().mean() > 0.5


def test_padding_gets_no_token_and_a_row_of_nan_neither():
    head = make_head([2, 0], 3, 3, 30, torch.float16, (1.0,))
    head.x[0, 1] = torch.nan
    head.x[0, 2] = torch.nan
    found = run_kernel(head)
    assert found[0, 0] >= 0
    assert (found.flatten()[1:] == NO_TOKEN).all()


def test_tokens_come_out_as_often_as_their_probability_says():
    """1,024 rows of one distribution over 11 tokens: chi square with 10 degrees of freedom, below its 99.99 % point."""
    batch, vocab = 256, 11
    head = make_head([4] * batch, 4, 4, vocab, torch.float32, (1.3,))
    head.x.copy_(head.x[:1, :1].expand_as(head.x))
    head.request[3].copy_(torch.arange(4).expand(batch, 4))
    logits = logits_of(replace(head, x=head.x[:1]))[0, 0]
    wanted = torch.softmax(logits.double() / 1.3, 0) * batch * 4
    counts = torch.bincount(run_kernel(head).flatten(), minlength=vocab)
    assert wanted.min() > 5
    assert ((counts - wanted) ** 2 / wanted).sum() < 35.6


def test_requests_of_another_batch_are_refused():
    head = make_head([2, 2], 2, 2, 30, torch.float32)
    wrong = replace(head, request=(torch.zeros(3), *head.request[1:]))
    with pytest.raises(ContractError, match="temperature of norm_head_sample"):
        run_kernel(wrong)
    with pytest.raises(ContractError, match="out of norm_head_logits"):
        norm_head_logits(torch.zeros(2, 2, 30).half(), head.x, head.norm, head.weight, eps=1e-5, tuned=SMALL)
