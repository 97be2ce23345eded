"""Trees of drawn candidates: what a proposer says of its draws has to fit the tree.

Run: pytest tests/core/test_drawn_candidates.py
"""

import numpy as np
import pytest

from tspec.core.errors import ShapeError
from tspec.core.sampling import DRAWN, DRAWN_CHAIN
from tspec.core.tree import CandidateTrees


def drawn(parents: list[int], is_sampled: list[int], width: int = 5) -> CandidateTrees:
    """One row; each node has a token of its own."""
    count = len(parents)
    arrays = (np.arange(count), parents, is_sampled)
    tokens, parents, is_sampled = (np.array([each], np.int32) for each in arrays)
    draft_logprobs = np.zeros((1, count, width), np.float32)
    return CandidateTrees(tokens, parents, np.array([count], np.int32), is_sampled, draft_logprobs)


@pytest.mark.parametrize(
    ("parents", "is_sampled"),
    [
        ([-1, 0, 0, 1], [DRAWN, 0, DRAWN, 0]),
        ([-1, 0, 1], [DRAWN_CHAIN, DRAWN_CHAIN, 0]),
        ([-1, 0, 1], [DRAWN_CHAIN, DRAWN_CHAIN, DRAWN_CHAIN]),
        ([-1], [DRAWN_CHAIN]),
    ],
)
def test_trees_and_blocks_that_fit_pass(parents, is_sampled):
    drawn(parents, is_sampled).check()


def test_a_block_is_a_chain():
    with pytest.raises(ShapeError, match="got parent 0 of node 2 of a block, need 1"):
        drawn([-1, 0, 0], [DRAWN_CHAIN, DRAWN_CHAIN, 0]).check()


def test_every_candidate_of_a_block_is_drawn():
    with pytest.raises(ShapeError, match="got is_sampled 0 at node 1 of a block, need 2"):
        drawn([-1, 0, 1, 2], [DRAWN_CHAIN, 0, DRAWN_CHAIN, 0]).check()


def test_draws_come_with_their_law():
    trees = drawn([-1, 0], [DRAWN, 0])
    with pytest.raises(ShapeError, match="drawn candidates"):
        CandidateTrees(trees.tokens, trees.parents, trees.num_nodes, trees.is_sampled, None).check()
