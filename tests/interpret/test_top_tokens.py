"""The likeliest tokens of a draft's rows are the reference's: ties, NaN, rows of nothing, padding, another vocabulary.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_top_tokens.py
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda_sampling import NAN, hard_logits, small_blocks, whole

from tspec.core.errors import ContractError
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cuda.top_tokens import top_tokens
from tspec.kernels.reference import REFERENCES


def run(logits, num_nodes, token_ids=None, most=3):
    shape = (*logits.shape[:-1], most)
    outs = torch.full(shape, -7, dtype=torch.int32), torch.full(shape, NAN)
    top_tokens(*outs, logits, num_nodes, token_ids, most=most)
    return outs


def hold(logits, num_nodes, token_ids=None, most=3):
    tokens, logprobs = run(logits, num_nodes, token_ids, most)
    want = REFERENCES["top_tokens"]({"most": most}, logits, num_nodes, token_ids)
    assert torch.equal(tokens, want[0]), (tokens, want[0])
    torch.testing.assert_close(logprobs, want[1], rtol=2e-6, atol=2e-6)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    rows=st.sampled_from((1, 3)),
    vocab=st.integers(1, 70),
    most=st.sampled_from((1, 3, 10)),
    is_reduced=st.booleans(),
    seed=st.integers(0, 99),
)
def test_each_row_has_the_likeliest_tokens_of_the_reference(counts, rows, vocab, most, is_reduced, seed):
    token_ids = torch.arange(vocab).int() * 3 + 5 if is_reduced else None
    with small_blocks():
        hold(hard_logits(len(counts), rows, vocab, seed), whole(*counts), token_ids, most)


def test_a_vocabulary_of_several_steps_of_a_sweep_at_the_real_sizes():
    logits = torch.randn(1, 2, 9000, generator=torch.Generator().manual_seed(0))
    logits[0, 1, [4095, 4096, 8191, 8192]] = 9.0
    hold(logits, whole(2), most=10)


def test_equal_logits_come_lowest_token_first_also_within_a_group_and_across():
    logits = torch.zeros(1, 1, 64)
    logits[0, 0, [5, 21, 22, 37, 53]] = 1.0
    with small_blocks(16):
        assert run(logits, whole(1), most=7)[0].flatten().tolist() == [5, 21, 22, 37, 53, 0, 1]


def test_places_without_a_token_say_so_and_are_not_looked_up():
    logits = torch.full((1, 2, 6), -torch.inf)
    logits[0, 0, [4, 1]] = torch.tensor([1.0, NAN])
    tokens, logprobs = run(logits, whole(2), whole(*range(100, 106)))
    assert tokens.tolist() == [[[104, NO_TOKEN, NO_TOKEN], [NO_TOKEN] * 3]]
    assert logprobs.tolist() == [[[0.0, -torch.inf, -torch.inf], [-torch.inf] * 3]]


def test_a_row_has_the_same_bits_alone_and_among_others():
    logits = torch.randn(4, 3, 50)
    with small_blocks():
        together, alone = run(logits, whole(3, 3, 3, 3)), run(logits[2:3], whole(3))
    assert all(torch.equal(one, each[2:3]) for one, each in zip(alone, together, strict=True))


def test_tokens_of_another_vocabulary_are_refused():
    with pytest.raises(ContractError, match="token_ids of top_tokens"):
        run(torch.zeros(1, 1, 9), whole(1), whole(1, 2))
