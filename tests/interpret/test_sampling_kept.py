"""What is kept is the reference's set, exactly: ties, NaN, flat rows, rows whose likely tokens are gathered or not.

Where the mass before a token is within rounding of top_p both answers are right; logits here are not so unlucky, but
where they are equal, and there masses are whole numbers of one weight in the kernel.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_sampling_kept.py
"""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda_sampling import INF, SIZES, hard_logits, make_scratch, numbers, run_kept, whole

from tspec.core.errors import ContractError
from tspec.kernels.cuda import kept
from tspec.kernels.reference import REFERENCES

FILTERS = (
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.3, -1, 0.83, 0.0),
    (0.8, 20, 0.91, 0.02),
    (1.0, 0, 1e-6, 0.0),
    (1.3, 0, 0.9999, 0.0),
    (1.0, 1 << 30, 1.0, 0.07),
    (2.0, 0, 1.0, 1.0),
    (50.0, 3, 0.61, 0.5),
    (0.5, 90, 0.77, 0.0),
    (0.0, 5, 0.5, 0.1),
)
"""Temperature, top_k, top_p, min_p: all kept, each alone, all at once, greedy."""


def operands(filters, counts):
    """temperature, top_k, top_p, min_p, num_nodes of sequences with `filters`."""
    temperature, top_k, top_p, min_p = zip(*filters, strict=True)
    return numbers(*temperature), whole(*top_k), numbers(*top_p), numbers(*min_p), whole(*counts)


def assert_kept(logits, request, sizes):
    """The kernel's outputs are the reference's: thresholds bit for bit."""
    want = REFERENCES["find_kept"]({}, logits, *request)
    with patch.multiple(kept, **sizes):
        found = run_kept(logits, *request)
    assert torch.equal(found[0], want[0]) and torch.equal(found[1], want[1]), (found, want)
    scale = want[2].abs().clamp(min=1)
    assert ((found[2] - want[2]).abs() / scale).max() < 2e-6


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    vocab=st.integers(1, 150),
    filters=st.sampled_from(FILTERS),
    sizes=st.sampled_from(SIZES),
    seed=st.integers(0, 99),
)
def test_what_is_kept_of_random_rows_is_the_references(vocab, filters, sizes, seed):
    logits = torch.randn(1, 2, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    assert_kept(logits, operands([filters], [2]), sizes)


@pytest.mark.parametrize("sizes", SIZES, ids=("gathered", "whole"))
@pytest.mark.parametrize("filters", FILTERS[1:5], ids=str)
def test_what_is_kept_of_hard_rows_is_the_references(filters, sizes):
    assert_kept(hard_logits(1, 9, 97), operands([filters], [9]), sizes)


@pytest.mark.parametrize("sizes", SIZES, ids=("gathered", "whole"))
def test_every_sequence_has_its_own_limits_and_padding_and_greedy_rows_keep_all(sizes):
    logits = hard_logits(12, 2, 70, seed=3)
    counts = [2, 1, 0, 2, 2, 1, 2, 2, 1, 2, 1, 2]
    with patch.multiple(kept, **sizes):
        found = run_kept(logits, *operands(FILTERS, counts))
    want = REFERENCES["find_kept"]({}, logits, *operands(FILTERS, counts))
    for out, wanted in zip(found[:2], want[:2], strict=True):
        assert torch.equal(out, wanted)
    assert found[0][11].tolist() == [-INF, -INF] and found[2][11].tolist() == [0, 0]


@pytest.mark.parametrize("top_p", [0.5, 0.51, 1e-6, 0.999])
def test_of_equal_tokens_the_highest_are_kept_and_no_more_than_it_takes(top_p):
    """Masses of n equal tokens are exact in the kernel: the least number whose share is at least top_p."""
    vocab = 64
    with patch.multiple(kept, **SIZES[1]):
        threshold, first_tie, _ = run_kept(
            torch.full((1, 1, vocab), -3.0), *operands([(1.0, 0, top_p, 0.0)], [1])
        )
    num_kept = next(number for number in range(1, vocab + 1) if number >= vocab * float(numbers(top_p)))
    assert threshold.item() == -3 and first_tie.item() == vocab - num_kept


def test_a_tie_that_is_cut_by_top_p_starts_where_the_reference_starts_it_also_among_the_gathered():
    """30 tokens of 0.5 % each are tied behind a likely one; about half of them are kept."""
    logits = torch.full((1, 1, 128), -12.0)
    logits[0, 0, 3:93:3] = 1.0
    logits[0, 0, 60] = 6.0
    for sizes in SIZES:
        with patch.multiple(kept, **sizes):
            threshold, first_tie, _ = run_kept(logits, *operands([(1.0, 0, 0.92, 0.0)], [1]))
        want = REFERENCES["find_kept"]({}, logits, *operands([(1.0, 0, 0.92, 0.0)], [1]))
        assert (threshold.item(), first_tie.item()) == (want[0].item(), want[1].item())
        assert 3 < first_tie.item() < 90


def test_a_tie_that_top_p_cuts_and_min_p_drops_leaves_no_first_tie():
    """One token at 4 and thirty at 0, of which top_p keeps some: min_p 0.05 drops them, exp(-4) being 0.018."""
    logits = torch.zeros(1, 1, 31)
    logits[0, 0, 9] = 4.0
    for min_p, wanted in ((0.0, (0.0, 16)), (0.05, (4.0, 0))):
        threshold, first_tie, _ = run_kept(logits, *operands([(1.0, 0, 0.82, min_p)], [1]))
        want = REFERENCES["find_kept"]({}, logits, *operands([(1.0, 0, 0.82, min_p)], [1]))
        assert (threshold.item(), first_tie.item()) == (want[0].item(), want[1].item()) == wanted


def test_likely_tokens_are_gathered_in_order_and_a_flat_row_is_not():
    logits = torch.randn(2, 1, 100, generator=torch.Generator().manual_seed(1))
    logits[1] = 1.0
    scratch = make_scratch(8 * 2 * 64)
    outs = torch.zeros(2, 1), torch.zeros(2, 1).int(), torch.zeros(2, 1)
    with patch.multiple(kept, **SIZES[0]):
        kept.find_kept(*outs, logits, *operands([(1.0, 3, 1.0, 0.0)] * 2, [1, 1]), scratch=scratch)
    values, tokens = scratch.partials[:64], scratch.partials.view(torch.int32)[128:192]
    num = int((~values.isnan()).sum())
    assert 8 <= num < 20
    assert tokens[:num].tolist() == (logits[0, 0] >= values[:num].min()).nonzero().flatten().tolist()
    assert outs[0].tolist() == [[logits[0, 0].sort().values[-3].item()], [1.0]]


def test_both_zeros_are_one_score():
    logits = torch.tensor([0.0, -0.0, -1.0, 0.0, -0.0]).view(1, 1, 5)
    threshold, first_tie, log_sum = run_kept(logits, *operands([(1.0, 2, 1.0, 0.0)], [1]))
    assert threshold.item() == 0 and first_tie.item() == 0
    assert log_sum.item() == pytest.approx(torch.tensor(4.0).log().item())


def test_a_row_has_the_same_limits_alone_and_among_others():
    logits, request = hard_logits(3, 2, 80, seed=2), operands(FILTERS[3:6], [2, 2, 2])
    with patch.multiple(kept, **SIZES[0]):
        together = run_kept(logits, *request)
        alone = run_kept(*(each[1:2].contiguous() for each in (logits, *request)))
    assert all(torch.equal(one, each[1:2]) for one, each in zip(alone, together, strict=True))


def test_room_for_less_than_may_be_gathered_is_refused():
    outs = torch.zeros(1, 1), torch.zeros(1, 1).int(), torch.zeros(1, 1)
    logits, request = torch.zeros(1, 1, 100), operands(FILTERS[:1], [1])
    with patch.multiple(kept, **SIZES[0]), pytest.raises(ContractError, match="partials of find_kept"):
        kept.find_kept(*outs, logits, *request, scratch=make_scratch(8))
    with pytest.raises(ContractError, match="top_k of find_kept"):
        kept.find_kept(*outs, logits, request[0], *request[2:3], *request[2:], scratch=make_scratch(8))
