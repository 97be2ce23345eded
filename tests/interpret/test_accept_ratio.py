"""Acceptance by ratio on cuda, in the interpreter: the kernel decides as the float64 reference does.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_accept_ratio.py
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance_cases import Draft
from support.acceptance_edges import EDGE_NODE, EDGES, FORMS, ONLY_0, ONLY_1, two_candidates
from support.cuda_sampling import assert_judged, run_accept_ratio

from tspec.core.errors import ContractError
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cuda.accept_ratio import BLOCK


@st.composite
def drafts(draw: st.DrawFn, **settings) -> Draft:
    vocab = draw(st.sampled_from((5, 64, 97)))
    most = min(vocab, 8)
    known = draw(st.none() | st.integers(most, vocab)) if vocab > most else None
    return Draft(
        counts=draw(st.lists(st.integers(1, most), min_size=1, max_size=2)),
        vocab=vocab,
        seed=draw(st.integers(0, 1 << 32)),
        temperatures=draw(st.sampled_from(((1.0, 0.7), (1.6, 0.0)))),
        spread=draw(st.sampled_from((0.0, 0.3, 1.0, 2.0))),
        dropped=draw(st.sampled_from((0.0, 0.5))),
        draft_vocab=known,
        **settings,
    )


@settings(deadline=None, max_examples=25, derandomize=True)
@given(draft=drafts())
def test_a_random_tree_is_judged_as_the_reference_judges_it(draft):
    """Drawn and certain children, greedy rows, filters, siblings in any number, draws that were dropped."""
    assert_judged(draft.operands())


@settings(deadline=None, max_examples=25, derandomize=True)
@given(draft=drafts(is_block=True))
def test_a_chain_is_judged_as_a_block_as_the_reference_judges_it(draft):
    assert_judged(draft.operands())


@pytest.mark.parametrize("form", ["chain", "block"])
@pytest.mark.parametrize(("seed", "logits", "is_accepted"), EDGES)
def test_the_smallest_and_the_largest_number_decide_as_they_should(form, seed, logits, is_accepted):
    found = two_candidates(form, [ONLY_0, logits, ONLY_0], [ONLY_0, ONLY_1, ONLY_1], [seed])
    _, _, path = assert_judged(found)
    assert (EDGE_NODE in path) == is_accepted


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("broken", [np.nan, -np.inf])
def test_a_row_without_any_logit_ends_in_no_token(form, broken):
    found = two_candidates(form, np.zeros((3, 97)), np.log(np.full((3, 97), 1 / 97)), [5, 6])
    found["logits"][0, 0], found["log_sum"][0, 0] = broken, 0.0
    out_tokens, num_out, _ = assert_judged(found)
    assert (num_out[0].item(), out_tokens[0, 0].item()) == (1, NO_TOKEN)


def test_a_vocabulary_of_several_steps_is_swept_to_its_end():
    vocab = 2 * BLOCK + 5
    draft = Draft(counts=[6, 4], vocab=vocab, seed=11, temperatures=(1.0,), certain=0.0, spread=2.0)
    assert_judged(draft.operands())


def test_padding_and_rows_without_a_sequence_are_never_accepted():
    found = Draft(counts=[3, 7], vocab=16, seed=2, temperatures=(1.0,), certain=0.0).operands()
    found["num_nodes"][0] = 1
    _, num_out, path = run_accept_ratio(found)
    assert num_out[0] == 1
    assert (path[0] == -1).all()


def test_a_tree_of_65_nodes_and_a_draft_of_other_tokens_are_refused():
    found = Draft(counts=[3], vocab=8, seed=0).operands()
    found["draft_logprobs"] = np.zeros((1, 3, 5), np.float32)
    with pytest.raises(ContractError, match="draft_logprobs of accept_ratio: got 5, need 8 tokens"):
        run_accept_ratio(found)
    found["logits"] = np.zeros((1, 65, 8), np.float32)
    with pytest.raises(ContractError, match="nodes of accept_ratio: got 65, need at most 64"):
        run_accept_ratio(found)
