"""Plain decoding is a proposer that guesses nothing.

Run: python -m pytest tests/proposers/test_none.py
"""

from support.proposing import int32, tell

from tspec.core.proposer import DraftBatch
from tspec.proposers.none import NoProposer


def test_no_proposer_answers_with_the_root_alone():
    of = NoProposer()
    of.warm_up()
    of.admit(0, int32(7, 7, 7, 7))
    tell(of, 0, 7)
    trees = of.propose(DraftBatch(int32(0, 5), int32(7, 8), int32(9, 9)))
    trees.check()
    assert (trees.tokens.tolist(), trees.num_nodes.tolist()) == ([[7], [8]], [1, 1])
    of.release(3)
