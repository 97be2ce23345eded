"""Acceptance by ratio: the kernel decides as the float64 reference does, for the same noise.

Run: pytest tests/kernels/test_accept_ratio.py
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance_cases import Draft, Operands, reference_verdict, run_kernel

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


@settings(deadline=None, max_examples=60, derandomize=True)
@given(draft=drafts())
def test_a_random_tree_is_judged_as_the_reference_judges_it(draft):
    """Drawn and certain children, greedy rows, filters, siblings in any number, draws that were dropped."""
    assert_like_reference(draft.operands())


@settings(deadline=None, max_examples=60, derandomize=True)
@given(draft=drafts(is_block=True))
def test_a_chain_is_judged_as_a_block_as_the_reference_judges_it(draft):
    assert_like_reference(draft.operands())
