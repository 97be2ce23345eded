"""Log-probabilities equal the reference's within float32, the likeliest tokens come in its order, ties and all.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_sampling_logprobs.py
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda_sampling import hard_logits, run_logprobs, small_blocks, whole

from tspec.core.errors import ContractError
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.reference import REFERENCES

MOST = 5


def assert_equal(logits, *operands, most=MOST):
    with small_blocks():
        found = run_logprobs(logits, *operands, most=most)
    want = REFERENCES["token_logprobs"]({"most": most}, logits, *operands)
    assert torch.equal(found[1], want[1]), (found[1], want[1])
    for out, wanted in ((found[0], want[0]), (found[2], want[2])):
        torch.testing.assert_close(out, wanted, rtol=2e-6, atol=2e-6, equal_nan=True)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    vocab=st.integers(1, 70),
    is_last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_each_row_has_the_log_probabilities_of_the_reference(counts, vocab, is_last, seed):
    generator = torch.Generator().manual_seed(seed)
    batch, rows = len(counts), 1 if is_last else 3
    logits = hard_logits(batch, rows, vocab, seed)
    logits[~(logits > -torch.inf).any(-1)] = 1.0  # nothing is chosen there, and there is nothing to divide by
    chosen = torch.randint(-1, vocab, (batch, rows), generator=generator).int()
    wanted = torch.randint(-1, MOST + 1, (batch,), generator=generator).int()
    assert_equal(logits, chosen, wanted, whole(*counts), None, None)


def test_entries_of_a_verdict_follow_the_accepted_path():
    """Of two accepted nodes, 2 and 5, entries are about the root, node 2 and node 5; the rest is empty."""
    logits = hard_logits(3, 6, 40)
    logits[~(logits > -torch.inf).any(-1)] = 0.0
    path = torch.full((3, 6), -1).int()
    path[0, :2], path[1, :1] = whole(2, 5), whole(3)
    chosen = torch.full((3, 6), -1).int()
    chosen[0, :3], chosen[1, :2], chosen[2, 0] = whole(7, 39, 11), whole(0, 5), -1
    assert_equal(logits, chosen, whole(2, 5, 5), whole(6, 4, 1), whole(3, 2, 1), path)


def test_equal_logits_come_lowest_token_first_also_within_a_group_and_across():
    logits = torch.zeros(1, 1, 64)
    logits[0, 0, [5, 21, 22, 37, 53]] = 1.0
    with small_blocks(16):
        _, tokens, _ = run_logprobs(logits, whole(0).view(1, 1), whole(7), whole(1), None, None, most=7)
    assert tokens.flatten().tolist() == [5, 21, 22, 37, 53, 0, 1]


def test_tokens_of_minus_infinity_come_last_and_none_comes_twice():
    logits = torch.full((1, 1, 6), -torch.inf)
    logits[0, 0, [4, 1]] = torch.tensor([1.0, torch.nan])
    with small_blocks(4):
        found = run_logprobs(logits, whole(4).view(1, 1), whole(20), whole(1), None, None, most=20)
    assert found[1].flatten().tolist() == [4, 0, 1, 2, 3, 5, *[NO_TOKEN] * 14]
    assert found[0].item() == 0 and found[2].flatten().tolist()[:6] == [0, *[-torch.inf] * 5]


def test_what_was_not_asked_for_is_empty_and_a_token_alone_has_no_others():
    logits = torch.randn(3, 2, 30)
    found = run_logprobs(
        logits, whole(3, 4, 3, 4, 3, 4).view(3, 2), whole(-1, 0, 2), whole(2, 2, 1), None, None, most=2
    )
    assert found[0][0].tolist() == [0, 0] and (found[0][1] < 0).all()
    assert (found[1] != NO_TOKEN).tolist() == [[[False] * 2] * 2] * 2 + [[[True] * 2, [False] * 2]]


def test_a_row_has_the_same_bits_alone_and_among_others():
    logits, chosen = torch.randn(4, 3, 50), torch.randint(0, 50, (4, 3)).int()
    operands = (whole(3, 3, 3, 3), whole(3, 3, 3, 3))
    with small_blocks():
        together = run_logprobs(logits, chosen, *operands, None, None, most=3)
        alone = run_logprobs(logits[2:3], chosen[2:3], *(each[:1] for each in operands), None, None, most=3)
    assert all(torch.equal(one, each[2:3]) for one, each in zip(alone, together, strict=True))


def test_a_path_of_another_shape_is_refused():
    with pytest.raises(ContractError, match="path of token_logprobs"):
        run_logprobs(
            torch.zeros(1, 2, 9),
            whole(1, 1).view(1, 2),
            whole(1),
            whole(2),
            whole(1),
            whole(1).view(1, 1),
            most=1,
        )
