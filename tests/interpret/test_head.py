"""The head chooses the token of the reference: ties, NaN, -inf, and vocabularies that fill no block.

Numbers are small and whole where ties matter, so that logits are exact and many are equal.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_head.py
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda_rows import SMALL, expected, make_operands, make_scratch, run_kernel

from tspec.core.errors import ContractError
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cuda.head import norm_head_sample
from tspec.kernels.reference import REFERENCES

KIND = "norm_head_sample"
NAN, INF = float("nan"), float("inf")


def whole(rows, vocab, k, dtype, has_bias=False, seed=0, kind=KIND):
    """Operands of the head in small whole numbers; each row's squares are equal, so its scale is one number."""
    operands = make_operands(kind, rows, vocab, k, dtype, has_bias, seed)
    operands.x.copy_(torch.where(operands.x > 0, 1.0, -1.0))
    operands.weight.mul_(k**0.5).round_()
    operands.norm.fill_(1.0)
    if has_bias:
        operands.bias.round_()
    return operands


def expected_whole(operands):
    """The answer of the reference from the unscaled rows: whole logits, which the scale keeps in order."""
    x = operands.x.double()
    return REFERENCES["head_sample"]({}, x, operands.weight, operands.bias, *operands.request)[0]


@pytest.mark.parametrize("kind", [KIND, "head_sample"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 70), vocab=st.integers(1, 100), k=st.integers(1, 40), split_k=st.sampled_from((1, 2))
)
def test_the_head_chooses_the_lowest_of_the_best_tokens(dtype, kind, rows, vocab, k, split_k):
    operands = whole(rows, vocab, k, dtype, kind=kind)
    found = run_kernel(operands, replace(SMALL, split_k=split_k))
    assert torch.equal(found, expected_whole(operands))


@pytest.mark.parametrize("rows", [3, 33])
@pytest.mark.parametrize("kind", [KIND, "head_sample"])
def test_the_head_adds_a_bias_after_scaling(kind, rows):
    operands = make_operands(kind, rows, 100, 40, torch.float32, has_bias=True)
    assert torch.equal(run_kernel(operands), expected(operands))


def test_equal_logits_in_several_blocks_give_the_lowest_token():
    """All weights equal: each token of each block has the same logit."""
    operands = whole(5, 100, 40, torch.float16)
    operands.weight.fill_(1.0)
    assert run_kernel(operands).tolist() == [[0] * 5]


@pytest.mark.parametrize("best", [0, 15, 16, 95, 99])
def test_the_best_token_is_found_wherever_it_lies(best):
    operands = whole(2, 100, 40, torch.float32)
    operands.weight[best] = 8 * operands.x[0, 1]
    assert run_kernel(operands)[0, 1] == best


def test_a_row_of_nan_gives_no_token_and_leaves_the_others_as_they_are():
    """V = 100 in blocks of 16: the last block has 12 columns that are no token."""
    operands = whole(4, 100, 40, torch.float16)
    before = run_kernel(operands)
    operands.x[0, 2, 7] = NAN
    after = run_kernel(operands)
    assert after[0, 2] == NO_TOKEN
    assert after[0, [0, 1, 3]].tolist() == before[0, [0, 1, 3]].tolist()


def test_tokens_of_nan_weights_and_of_minus_infinity_are_never_chosen_before_others():
    operands = whole(3, 40, 8, torch.float32)
    operands.weight[:20] = NAN
    operands.weight[20:30, 0] = -INF * operands.x[0, :1, :1].item()
    found = run_kernel(operands)
    assert torch.equal(found, expected_whole(operands))
    assert found[0, 0] >= 30


def test_no_token_of_the_padded_vocabulary_is_chosen_where_all_logits_are_negative():
    """Padding repeats the last row of the weights; with all logits at -inf, none is chosen."""
    operands = whole(3, 21, 8, torch.float32, has_bias=True)
    operands.bias.fill_(-100.0)
    assert torch.equal(run_kernel(operands), expected_whole(operands))
    operands.bias.fill_(-INF)
    assert run_kernel(operands).tolist() == [[NO_TOKEN] * 3]


def test_a_replay_with_scratch_of_another_run_gives_the_same_tokens():
    tuned = replace(SMALL, split_k=2)
    operands, other = (whole(20, 70, 64, torch.float32, seed=seed) for seed in (0, 1))
    scratch = make_scratch(operands, tuned)
    first = run_kernel(operands, tuned, scratch)
    run_kernel(other, tuned, scratch)
    assert torch.equal(run_kernel(operands, tuned, scratch), first)
    assert not scratch.counters.any()


def test_a_head_without_scratch_for_its_best_tokens_is_refused():
    operands = whole(2, 20, 8, torch.float32)
    scratch = make_scratch(operands, SMALL)._replace(partials=torch.empty(2))
    out = torch.empty(1, 2, dtype=torch.int32)
    with pytest.raises(ContractError, match="partials of norm_head_sample"):
        norm_head_sample(
            out, operands.x, operands.norm, operands.weight, None, *operands.request,
            eps=1e-5, tuned=SMALL, scratch=scratch,
        )  # fmt: skip
