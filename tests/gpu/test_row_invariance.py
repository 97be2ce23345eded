"""A row of a chain has the bits of plain decoding, for every length and in a batch. Trees are reported by gpu_check.

Run: pytest tests/gpu/test_row_invariance.py -m gpu
"""

import pytest

from benchmarks.gpu.rows import RowProbe, holds
from tspec.core.tree import MAX_NODES

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def probe(medium, is_small):
    return RowProbe(medium, 4 if is_small else MAX_NODES)


def test_a_node_of_a_chain_has_the_bits_of_plain_decoding(probe):
    verdicts = probe.chains()
    assert holds(verdicts), verdicts


def test_a_node_in_a_batch_of_four_has_the_bits_of_plain_decoding_alone(probe):
    verdicts = probe.batches()
    assert holds(verdicts), verdicts


def test_trees_are_compared_and_counted(probe, record_property):
    """No promise for trees: how many nodes are equal is written down, not demanded."""
    verdicts = probe.trees(num_trees=1)
    record_property("trees", str(verdicts))
    assert len(verdicts) == 1
