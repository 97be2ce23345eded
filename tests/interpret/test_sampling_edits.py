"""Edits of logits are the reference's, bit for bit: bias, penalties down each path, masks, each alone and together.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_sampling_edits.py
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda_sampling import (
    ALL_EDITS,
    INF,
    NAN,
    assert_edited,
    edit_operands,
    hard_logits,
    numbers,
    run_edits,
    small_blocks,
    whole,
)

from tspec.core.errors import ContractError
from tspec.core.sampling import EDIT_BIAS, EDIT_MASK, EDIT_PENALTIES


def run(logits, operands):
    with small_blocks():
        return run_edits(logits, operands)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any),
    vocab=st.integers(1, 70),
    is_last=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_live_rows_are_edited_as_the_reference_edits_them(counts, vocab, is_last, seed):
    rows = 1 if is_last else max(counts)
    operands = edit_operands(tuple(counts), vocab, rows, seed)
    logits = hard_logits(len(counts), rows, vocab, seed)
    assert_edited(run(logits, operands), logits, operands)


@pytest.mark.parametrize("edits", range(ALL_EDITS + 1))
def test_each_set_of_edits_is_the_references(edits):
    operands = edit_operands((3, 1, 4), 40, 4, seed=edits)
    operands[0].fill_(edits)
    logits = hard_logits(3, 4, 40)
    assert_edited(run(logits, operands), logits, operands)


def test_a_candidate_counts_below_itself_and_nowhere_else():
    """A tree of root 9 with children 3 and 5, and 3 again below 3: presence 1, frequency 0.25; counts all 0."""
    vocab, nodes = 12, 4
    ancestors = torch.tensor([[0b0001, 0b0011, 0b0101, 0b1011]])
    operands = [
        whole(EDIT_PENALTIES), numbers(1, 1, 0.25).view(1, 3), torch.zeros(1, vocab).int(), torch.zeros(1, vocab),
        torch.zeros(1, nodes, 1).int(), whole(9, 3, 5, 3).view(1, 4), ancestors, whole(4),
    ]  # fmt: skip
    out = run(torch.zeros(1, nodes, vocab), operands)[0]
    assert out[:, 9].tolist() == [0, 0, 0, 0]
    assert out[:, 3].tolist() == [0, -1.25, 0, -1.5]
    assert out[:, 5].tolist() == [0, 0, -1.25, 0]


def test_nan_becomes_minus_infinity_and_no_bias_or_penalty_brings_it_back():
    operands = edit_operands((2,), 20, 2, seed=0)
    operands[0].fill_(EDIT_BIAS | EDIT_PENALTIES)
    operands[1][:] = numbers(0.5, -2, -2)
    logits = torch.zeros(1, 2, 20)
    logits[0, 0, 3], logits[0, 1, 4] = NAN, -INF
    out = run(logits, operands)
    assert out[0, 0, 3] == out[0, 1, 4] == -INF
    assert out.isfinite().sum() == 38


def test_a_mask_has_its_bits_lowest_first_and_32_to_a_word():
    operands = edit_operands((1,), 70, 1, seed=0)
    operands[0].fill_(EDIT_MASK)
    operands[4].copy_(whole(1 << 5, -(1 << 31), 1 << 4).view(1, 1, 3))
    out = run(torch.zeros(1, 1, 70), operands)
    assert out[0, 0].isfinite().nonzero().flatten().tolist() == [5, 63, 68]


def test_tables_of_another_size_are_refused():
    operands = edit_operands((2, 2), 40, 2, seed=0)
    logits = torch.zeros(2, 2, 40)
    for place, name in ((2, "counts"), (3, "bias"), (4, "mask"), (1, "penalties")):
        wrong = [*operands[:place], operands[place][..., :1].contiguous(), *operands[place + 1 :]]
        with pytest.raises(ContractError, match=f"{name} of edit_logits"):
            run(logits, wrong)
