"""Tokens sampled from logits in memory are the reference's: kept sets, ties, NaN, padding, one row or a row a node.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_sampling_tokens.py
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda_rows import make_request
from support.cuda_sampling import (
    INF,
    assert_sampled,
    hard_logits,
    make_scratch,
    run_sample,
    small_blocks,
    whole,
)

from tspec.core.errors import ContractError
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cuda.sample import sample
from tspec.kernels.reference import REFERENCES

TEMPERATURES = (0.0, 1.0, 0.4, 3.0)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    vocab=st.integers(1, 70),
    is_last=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_row_gets_the_token_of_the_reference(counts, vocab, is_last, seed):
    """Greedy and sampled sequences side by side, padding among them."""
    logits = hard_logits(len(counts), 1 if is_last else 4, vocab, seed)
    request = make_request(counts, 4, TEMPERATURES[seed % 4 :] + TEMPERATURES, seed)
    with small_blocks():
        assert_sampled(run_sample(logits, *request, None, None), logits, *request, None, None)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(vocab=st.integers(2, 70), seed=st.integers(0, 1000))
def test_a_token_comes_out_of_what_is_kept(vocab, seed):
    logits = hard_logits(4, 3, vocab, seed)
    request = make_request([3, 3, 1, 2], 3, (1.0, 0.7, 0.0, 2.0), seed)
    filters = (whole(5, 1, 2, 0), torch.tensor([0.6, 1.0, 0.9, 0.3]), torch.tensor([0.0, 0.0, 0.1, 0.05]))
    threshold, first_tie, _ = REFERENCES["find_kept"]({}, logits, request[0], *filters, request[4])
    with small_blocks():
        found = run_sample(logits, *request, threshold, first_tie)
    assert_sampled(found, logits, *request, threshold, first_tie)


def test_of_equal_tokens_only_those_from_the_first_tie_on_come_out():
    """All logits equal: 40 positions draw from the five highest tokens, and from all five."""
    batch, vocab = 40, 30
    logits = torch.full((batch, 1, vocab), 2.5)
    request = make_request([1] * batch, 1, (1.0,))
    with small_blocks():
        found = run_sample(logits, *request, torch.full((batch, 1), 2.5), whole(*[25] * batch)[:, None])
    assert set(found.flatten().tolist()) == set(range(25, 30))


def test_equal_logits_of_a_greedy_row_give_the_lowest_token_whichever_block_it_is_in():
    logits = torch.zeros(1, 3, 64)
    logits[0, 1, 17:] = 1.0
    logits[0, 2, 63] = 1.0
    with small_blocks():
        assert run_sample(logits, *make_request([3], 3), None, None).tolist() == [[0, 17, 63]]


def test_rows_without_a_token_and_padding_get_none():
    logits = torch.zeros(3, 2, 20)
    logits[0, 0], logits[1, 0] = -INF, torch.nan
    request = make_request([2, 2, 1], 2, (1.0, 0.0, 1.0))
    found = run_sample(logits, *request, None, None)
    assert (found == NO_TOKEN).tolist() == [[True, False], [True, False], [False, True]]


def test_a_row_draws_the_same_alone_and_among_others():
    logits = hard_logits(4, 4, 50)
    request = make_request([4, 2, 4, 3], 4, (1.0, 0.0, 0.5))
    with small_blocks():
        together = run_sample(logits, *request, None, None)
        for sequence in range(4):
            alone = [each[sequence : sequence + 1] for each in (logits, *request)]
            assert torch.equal(run_sample(*alone, None, None), together[sequence : sequence + 1])


def test_the_last_row_alone_draws_what_the_last_node_draws():
    """The chunk of a prompt: one row a sequence, at the position of the last live node."""
    request = make_request([4, 2, 1], 4, (1.0, 0.7))
    logits = hard_logits(3, 4, 60, seed=5)
    last = torch.stack([logits[sequence, count - 1] for sequence, count in enumerate((4, 2, 1))])[:, None]
    every, one = run_sample(logits, *request, None, None), run_sample(last, *request, None, None)
    assert one.flatten().tolist() == [every[0, 3], every[1, 1], every[2, 0]]


def test_temperature_divides_and_is_rounded_once():
    """Scores of 1 / 3 and its neighbours: a product with the inverse would round to other numbers."""
    logits = torch.linspace(0.9999, 1.0001, 64)[
        torch.randperm(64, generator=torch.Generator().manual_seed(1))
    ]
    request = make_request([1], 1, (3.0,))
    scores = (logits / 3.0).double().unique()
    assert len(scores) > 32
    assert_sampled(
        run_sample(logits.view(1, 1, -1), *request, None, None), logits.view(1, 1, -1), *request, None, None
    )


def test_operands_that_do_not_fit_are_refused():
    logits, request = torch.zeros(2, 3, 20), make_request([3, 3], 3)
    out = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(ContractError, match="seed of sample"):
        sample(out, logits, request[0], request[1].int(), *request[2:], scratch=make_scratch(1000))
    with pytest.raises(ContractError, match="partials of sample"):
        sample(out, logits, *request, scratch=make_scratch(40))
    with pytest.raises(ContractError, match="depth of sample"):
        sample(
            out, logits, *request[:3], request[3][:, :2].contiguous(), request[4], scratch=make_scratch(1000)
        )
