"""A draft's draws are the reference's: token, law and noise; and come as often as the law says.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_draw_draft.py
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda_rows import make_request
from support.cuda_sampling import NAN, hard_logits, make_scratch, numbers, small_blocks, whole

from tspec.core.errors import ContractError
from tspec.core.noise import draft_stream, gumbel
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cuda.draw_draft import draw_draft, scratch_bytes
from tspec.kernels.reference import REFERENCES

TEMPERATURES = (0.0, 1.0, 0.4, 3.0)
ATTRS = {"most": 1, "stream": draft_stream(3), "offset": 2}


def run(logits, *request, attrs=ATTRS):
    """tokens, logprobs, law; `request` is what follows the logits."""
    lead = logits.shape[:-1]
    outs = (
        torch.full((*lead, 1), -7, dtype=torch.int32),
        torch.full((*lead, 1), NAN),
        torch.full_like(logits, NAN),
    )
    need = scratch_bytes(lead.numel(), logits.shape[-1])
    draw_draft(*outs, logits, *request, **attrs, scratch=make_scratch(need.partials))
    return outs


def requests(counts, seed=0, temperatures=TEMPERATURES):
    """temperature, seed, prefix_len, num_nodes"""
    temperature, seeds, prefix_len, _, num_nodes = make_request(counts, 1, temperatures, seed)
    return temperature, seeds, prefix_len, num_nodes


def hold(logits, *request, attrs=ATTRS):
    """The reference's token, or one so near to it in float64 that rounding to float32 decides; and its law."""
    tokens, logprobs, law = run(logits, *request, attrs=attrs)
    want = REFERENCES["draw_draft"](attrs, logits, *request)
    torch.testing.assert_close(law, want[2], rtol=2e-6, atol=3e-6)
    temperature, seed, prefix_len, _, token_ids = request
    own = [*range(logits.shape[-1])] if token_ids is None else token_ids.tolist()
    for batch, row, _ in (tokens != want[0]).nonzero().tolist():
        pair = [own.index(int(each[batch, row, 0])) for each in (tokens, want[0])]
        scores = (logits[batch, row, pair] / temperature[batch]).double()
        position = int(prefix_len[batch]) + attrs["offset"]
        first, second = scores + torch.from_numpy(
            gumbel(int(seed[batch]), position, attrs["stream"], np.array(pair))
        )
        assert abs(first - second) <= 8 * 2**-24 * max(abs(float(second)), 32), (batch, row, pair)
    for batch, row, _ in (tokens != NO_TOKEN).nonzero().tolist():
        drawn = law[batch, row, own.index(int(tokens[batch, row, 0]))]
        assert logprobs[batch, row, 0] == drawn
    assert torch.equal(logprobs == -torch.inf, tokens == NO_TOKEN)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    rows=st.sampled_from((1, 3)),
    vocab=st.integers(1, 70),
    is_reduced=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_each_row_draws_the_token_of_the_reference_and_writes_its_law(counts, rows, vocab, is_reduced, seed):
    """Greedy and drawn sequences side by side, padding among them."""
    token_ids = torch.arange(vocab).int() * 3 + 5 if is_reduced else None
    request = requests(counts, seed, TEMPERATURES[seed % 4 :] + TEMPERATURES)
    attrs = {"most": 1, "stream": draft_stream(seed % 9), "offset": seed % 5}
    with small_blocks():
        hold(hard_logits(len(counts), rows, vocab, seed), *request, token_ids, attrs=attrs)


def test_a_vocabulary_of_several_blocks_at_the_real_sizes():
    hold(torch.randn(2, 1, 2500, generator=torch.Generator().manual_seed(0)) * 3, *requests([1, 1]), None)


def test_equal_logits_of_a_greedy_row_give_the_lowest_token_whichever_block_it_is_in():
    logits = torch.zeros(1, 3, 64)
    logits[0, 1, 17:] = 1.0
    logits[0, 2, 63] = 1.0
    with small_blocks():
        assert run(logits, *requests([3]), None)[0].flatten().tolist() == [0, 17, 63]


def test_rows_without_a_token_and_padding_get_none_and_no_law():
    logits = torch.zeros(3, 2, 20)
    logits[0, 0], logits[1, 0] = -torch.inf, NAN
    tokens, logprobs, law = run(logits, *requests([2, 2, 1], 0, (1.0, 0.0, 1.0)), whole(*range(20)))
    is_none = torch.tensor([[True, False], [True, False], [False, True]])
    assert torch.equal(tokens[..., 0] == NO_TOKEN, is_none)
    assert torch.equal((law == -torch.inf).all(-1), is_none) and torch.equal(
        logprobs[..., 0] == -torch.inf, is_none
    )


def test_streams_and_places_draw_other_tokens_and_the_same_ones_the_same():
    logits = torch.zeros(12, 1, 50)
    request = requests([1] * 12, 0, (1.0,))
    with small_blocks():
        first = run(logits, *request, None)[0]
        assert torch.equal(run(logits, *request, None)[0], first)
        for change in ({"stream": draft_stream(4)}, {"offset": 3}):
            assert (run(logits, *request, None, attrs=ATTRS | change)[0] != first).float().mean() > 0.5


def test_a_row_has_the_same_bits_alone_and_among_others():
    logits, request = torch.randn(4, 3, 50), requests([3, 3, 3, 3])
    with small_blocks():
        together = run(logits, *request, None)
        alone = run(logits[2:3], *(each[2:3] for each in request), None)
    assert all(torch.equal(one, each[2:3]) for one, each in zip(alone, together, strict=True))


def test_tokens_come_out_as_often_as_their_law_says():
    """160 rows of one distribution over 5 tokens: chi square with 4 degrees of freedom, below its 99.99 % point."""
    batch, vocab = 160, 5
    line = torch.randn(1, 1, vocab, generator=torch.Generator().manual_seed(2))
    with small_blocks(8):
        tokens, _, law = run(line.repeat(batch, 1, 1), *requests([1] * batch, 0, (1.3,)), None)
    wanted = law[0, 0].double().exp() * batch
    counts = torch.bincount(tokens.flatten(), minlength=vocab)
    assert wanted.min() > 5 and abs(float(wanted.sum()) - batch) < 1e-2
    assert ((counts - wanted) ** 2 / wanted).sum() < 23.5


def test_operands_that_do_not_fit_are_refused():
    logits, request = torch.zeros(1, 1, 20), requests([1])
    outs = torch.zeros(1, 1, 1).int(), torch.zeros(1, 1, 1), torch.zeros(1, 1, 20)
    with pytest.raises(ContractError, match="seed of draw_draft"):
        run(logits, request[0], request[1].int(), *request[2:], None)
    with pytest.raises(ContractError, match="partials of draw_draft"):
        draw_draft(*outs, logits, *request, **ATTRS, scratch=make_scratch(12))
    with pytest.raises(ContractError, match="temperature of draw_draft"):
        run(logits, numbers(1, 1), *request[1:], None)
