"""A draft's tree grows as the reference says: the best candidates, ties by index, bits and parents, ragged levels.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_expand_tree.py
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import draft_cases
from support.cpu_pass import run_on_cpu, run_references
from support.cuda_sampling import NAN, numbers, whole
from support.device_pass import bind_case
from support.kernel_case import Maker

from tspec.core.errors import ContractError
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cuda.expand_tree import expand_tree
from tspec.kernels.reference import REFERENCES

NAMES = ("scores", "next_tokens", "next_from", "next_scores", "next_ancestors", "next_depth")


def run(tokens, logprobs, row_scores, ancestors, level_nodes, **attrs):
    batch, width = len(tokens), attrs["width"]
    shapes = [tokens.shape, *[(batch, width)] * 5]
    dtypes = (torch.float32, torch.int32, torch.int32, torch.float32, torch.int64, torch.int32)
    outs = [torch.full(shape, -7, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    expand_tree(*outs, tokens, logprobs, row_scores, ancestors, level_nodes, **attrs)
    return dict(zip(NAMES, outs, strict=True))


def hold(*operands, **attrs):
    found = run(*operands, **attrs)
    for name, want in zip(NAMES, REFERENCES["expand_tree"](attrs, *operands), strict=True):
        assert torch.equal(found[name], want), (name, found[name], want)
    return found


def make_level(batch, rows, most, seed, first_node=0):
    """Candidates with few different scores, some without a token; ancestors among the nodes before."""
    generator = torch.Generator().manual_seed(seed)

    def pick(high, *shape):
        return torch.randint(0, high, shape, generator=generator)

    tokens = pick(9, batch, rows, most).int()
    logprobs = -pick(4, batch, rows, most).float()
    is_none = pick(5, batch, rows, most) == 0
    tokens[is_none], logprobs[is_none] = NO_TOKEN, -torch.inf
    row_scores = -pick(3, batch, rows).float() / 2
    row_scores[pick(6, batch, rows) == 0] = -torch.inf
    ancestors = pick(1 << max(first_node, 1), batch, rows) | 1 << (first_node + torch.arange(rows))
    return tokens, logprobs, row_scores, ancestors


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    width=st.sampled_from((1, 3, 10)),
    most=st.sampled_from((1, 2, 3, 10)),
    levels=st.integers(0, 3),
    ragged=st.lists(st.integers(0, 10), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_the_next_level_is_that_of_the_reference(width, most, levels, ragged, seed):
    """Unused rows, levels with fewer nodes than their width, fewer candidates than nodes, ties everywhere."""
    level_nodes = whole(*ragged).clamp(max=width)
    first_node = levels * width
    rows = 1 if levels == 0 else width
    tokens, logprobs, *above = make_level(len(ragged), rows, most, seed, max(first_node - width, 0))
    above = [None, None] if levels == 0 else above
    hold(tokens, logprobs, *above, level_nodes, first_node=first_node, depth=levels, width=width)


def test_equal_scores_come_in_the_order_of_their_index_across_rows():
    tokens = torch.arange(6).view(1, 3, 2).int()
    logprobs = numbers(-1, -2, 0, -1, -2, -1).view(1, 3, 2)
    row_scores, ancestors = numbers(0, -1, 0)[None], torch.tensor([[1, 2, 4]])
    found = hold(tokens, logprobs, row_scores, ancestors, whole(3), first_node=3, depth=1, width=3)
    assert found["next_from"].tolist() == [[0, 2, 5]]
    assert found["next_ancestors"].tolist() == [[1 | 8, 2 | 16, 4 | 32]]
    assert found["next_scores"].tolist() == [[-1, -1, -1]]


def test_candidates_run_out_and_padding_has_its_own_bit_alone():
    tokens, logprobs = whole(4, NO_TOKEN, 7).view(1, 1, 3), numbers(-3, 5, -1).view(1, 1, 3)
    found = hold(tokens, logprobs, None, None, whole(3), first_node=2, depth=0, width=4)
    assert found["next_tokens"].tolist() == [[7, 4, 0, 0]]
    assert found["next_scores"].tolist() == [[-1, -3, -torch.inf, -torch.inf]]
    assert found["next_ancestors"].tolist() == [[4, 8, 16, 32]]


def test_a_score_of_nan_is_never_taken():
    tokens, logprobs = whole(1, 2, 3).view(1, 1, 3), numbers(NAN, -2, NAN).view(1, 1, 3)
    found = hold(tokens, logprobs, None, None, whole(2), first_node=0, depth=0, width=2)
    assert found["next_tokens"].tolist() == [[2, 0]] and found["next_from"].tolist() == [[1, 0]]
    assert found["scores"].flatten().tolist() == [-torch.inf, -2, -torch.inf]


@pytest.mark.parametrize("level", [0, 1])
def test_the_cpu_and_the_device_count_nan_as_the_reference_does(level):
    case = draft_cases.expand_tree(Maker("nans"), 3, 4, (3, 1, 0, 2), level, nans=True)
    expected = run_references(case)
    assert np.isnan(case.inputs["top_logprobs"]).any()
    for found in (run_on_cpu(case), bind_case(case).run()):
        for name, want in expected.items():
            assert torch.equal(found[name].to(want.dtype), want), name


def test_the_last_bits_of_a_mask_are_used_and_none_behind_them():
    level = make_level(2, 5, 2, 3, 55)
    found = hold(*level, whole(5, 5), first_node=60, depth=12, width=5)
    assert (found["next_ancestors"][:, 3] < 0).all() and (found["next_ancestors"][:, 4] >= 0).all()


def test_many_candidates_and_the_widest_level():
    hold(*make_level(1, 64, 64, 1, 0), whole(61), first_node=0, depth=1, width=64)


def test_operands_that_do_not_fit_are_refused():
    tokens, logprobs, *above = make_level(1, 65, 64, 0)
    with pytest.raises(ContractError, match="candidates of expand_tree: got 4160, need at most 4096"):
        run(tokens, logprobs, *above, whole(1), first_node=0, depth=1, width=3)
    with pytest.raises(ContractError, match="row_scores of expand_tree"):
        run(tokens[:, :2], logprobs[:, :2], *above, whole(1), first_node=0, depth=1, width=3)
