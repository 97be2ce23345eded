"""Acceptance by ratio: the kernel decides as the float64 reference does, for the same noise.

Run: pytest tests/kernels/test_accept_ratio.py
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance_cases import Draft, Operands, as_tensors, reference_verdict, run_kernel, tree_of
from support.acceptance_edges import (
    EDGE_NODE,
    FORMS,
    HIGHEST_SEED,
    LOWEST_SEED,
    NEVER,
    ONLY_0,
    ONLY_1,
    two_candidates,
)

from tspec.core.noise import ACCEPT, random_bits, uniform
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.reference.accept_ratio import NoiseChooser, decide

THREADS = (1, 3)
VOCABS = st.sampled_from((5, 16, 64, 65, 97, 131))


def assert_like_reference(found: Operands) -> tuple[torch.Tensor, ...]:
    """Return the verdict, which is the reference's for any number of threads."""
    expected = reference_verdict(found)
    for num_threads in THREADS:
        for name, result, reference in zip(
            ("out_tokens", "num_out", "path"), run_kernel(found, num_threads), expected, strict=True
        ):
            assert torch.equal(result, reference), f"{name}: got {result}, need {reference}"
    return expected


@st.composite
def drafts(draw: st.DrawFn, **settings) -> Draft:
    vocab = draw(VOCABS)
    most = min(vocab, 12)
    known = draw(st.none() | st.integers(most, vocab)) if vocab > most else None
    return Draft(
        counts=draw(st.lists(st.integers(1, most), min_size=1, max_size=4)),
        vocab=vocab,
        seed=draw(st.integers(0, 1 << 32)),
        spread=draw(st.sampled_from((0.0, 0.3, 1.0, 2.0))),
        dropped=draw(st.sampled_from((0.0, 0.5))),
        draft_vocab=known,
        **settings,
    )


@settings(deadline=None, max_examples=40, derandomize=True)
@given(draft=drafts())
def test_a_random_tree_is_judged_as_the_reference_judges_it(draft):
    """Drawn and certain children, greedy rows, filters, siblings in any number, draws that were dropped."""
    assert_like_reference(draft.operands())


@settings(deadline=None, max_examples=40, derandomize=True)
@given(draft=drafts(is_block=True))
def test_a_chain_is_judged_as_a_block_as_the_reference_judges_it(draft):
    assert_like_reference(draft.operands())


def test_the_edge_seeds_take_the_smallest_and_the_largest_number():
    found = [random_bits(seed, 1, ACCEPT, np.array(EDGE_NODE)) for seed in (LOWEST_SEED, HIGHEST_SEED)]
    assert found == [0, 0xFFFFFFFF]


@pytest.mark.parametrize("form", FORMS)
def test_a_candidate_that_the_target_rules_out_is_refused_by_every_number(form):
    """The smallest one, which would be 0 if numbers began there, and the largest."""
    logits = (
        [[NEVER, NEVER, 0.0, 0.0]] * 3 if form == "siblings" else [ONLY_0, [0.0, NEVER, 0.0, 0.0], ONLY_0]
    )
    draft = [np.log([0.5, 0.5, 1e-9, 1e-9])] * 3 if form == "siblings" else [ONLY_0, ONLY_1, ONLY_1]
    found = two_candidates(form, logits, draft, [LOWEST_SEED, HIGHEST_SEED, 3, 4])
    out_tokens, num_out, path = assert_like_reference(found)
    assert EDGE_NODE not in path
    bonus = out_tokens.gather(1, num_out.long()[:, None] - 1).flatten().tolist()
    assert set(bonus) <= ({2, 3} if form == "siblings" else {0, 2, 3})


class FromZero(NoiseChooser):
    """A planted fault: uniform numbers in [0, 1)."""

    def accept(self, candidate: int, probability: float) -> bool:
        u = float(uniform(self.seed, self.prefix_len + 1, ACCEPT, np.array(candidate)))
        return u - 2.0**-32 <= probability


def test_numbers_from_zero_on_would_accept_what_is_ruled_out():
    found = two_candidates("chain", [ONLY_0] * 3, [ONLY_0, ONLY_1, ONLY_1], [LOWEST_SEED])
    tree, depth = tree_of(as_tensors(found), 0), found["depth"][0].tolist()
    assert EDGE_NODE not in decide(tree, NoiseChooser(LOWEST_SEED, 0, depth, [2, 2, 2]))[0]
    assert EDGE_NODE in decide(tree, FromZero(LOWEST_SEED, 0, depth, [2, 2, 2]))[0]


@pytest.mark.parametrize("form", ["chain", "block"])
@pytest.mark.parametrize(("log2_p", "is_accepted"), [(-31, True), (-33, False)])
def test_the_smallest_number_accepts_what_is_likelier_than_itself(form, log2_p, is_accepted):
    logits = [ONLY_0, [NEVER, log2_p * np.log(2), 0.0, NEVER], ONLY_0]
    _, num_out, _ = assert_like_reference(
        two_candidates(form, logits, [ONLY_0, ONLY_1, ONLY_1], [LOWEST_SEED])
    )
    assert (num_out.item() == 3) == is_accepted


@pytest.mark.parametrize("form", ["chain", "block"])
@pytest.mark.parametrize(("rest", "is_accepted"), [(NEVER, True), (-12.0, False)])
def test_the_largest_number_accepts_only_what_is_certain(form, rest, is_accepted):
    logits = [ONLY_0, [NEVER, 0.0, rest, NEVER], ONLY_0]
    _, num_out, _ = assert_like_reference(
        two_candidates(form, logits, [ONLY_0, ONLY_1, ONLY_1], [HIGHEST_SEED])
    )
    assert (num_out.item() == 3) == is_accepted


@pytest.mark.parametrize("form", FORMS)
def test_a_draft_that_is_the_target_is_accepted_and_leaves_no_nan(form):
    """Where a sibling is refused all the same, its residual is rounding at most."""
    logits = np.random.default_rng(0).normal(size=(3, 97)).astype(np.float32)
    draft = torch.from_numpy(logits).log_softmax(-1).numpy()
    _, num_out, path = assert_like_reference(two_candidates(form, logits, draft, list(range(64))))
    assert (path[:, 0] == 1).all()
    assert (num_out == (2 if form == "siblings" else 3)).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("broken", [np.nan, -np.inf])
def test_a_row_without_any_logit_ends_in_no_token(form, broken):
    """After the root; the other row of the batch goes on."""
    logits = np.zeros((3, 97), np.float32)
    found = two_candidates(form, logits, np.log(np.full((3, 97), 1 / 97)), [5, 6])
    found["logits"][0, 0], found["log_sum"][0, 0] = broken, 0.0
    out_tokens, num_out, _ = assert_like_reference(found)
    assert (num_out[0].item(), out_tokens[0, 0].item()) == (1, NO_TOKEN)
    assert 0 <= int(out_tokens[1, 0]) < 97


def test_a_greedy_row_is_matched_whatever_was_drawn():
    found = two_candidates("block", np.zeros((3, 5)), np.full((3, 5), -2.0), [7])
    found["temperature"][:] = 0
    found["node_tokens"][:] = [[0, 4, 4]]
    out_tokens, num_out, _ = assert_like_reference(found)
    assert out_tokens[0, : num_out.item()].tolist() == [0, 4]


@pytest.mark.parametrize("q_rest", [1e-3, 1e-6, 1e-12, 1e-30])
def test_a_second_sibling_is_judged_by_what_the_first_leaves_of_q(q_rest):
    """1 - q(first) would be all rounding. Of what is left of q it has a half, and of p a quarter: accepted at times."""
    logits = [np.log([1e-30, 0.25, 0.25, 0.25, 0.25])] * 3
    draft = [np.log([1.0, q_rest / 2, q_rest / 2, 1e-38, 1e-38])] * 3
    found = two_candidates("siblings", logits, draft, list(range(200)))
    _, _, path = assert_like_reference(found)
    accepted = (path[:, 0] == 2).sum().item()
    assert 70 < accepted < 130
