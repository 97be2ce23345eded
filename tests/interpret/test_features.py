"""Features are kept at the positions of committed nodes and read from the position before a node's, and nowhere else.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_features.py
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tspec.core.errors import ContractError
from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cuda.features import keep_features, read_features
from tspec.kernels.reference import REFERENCES

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NODES, MAX_BLOCKS = 5, 4
PREFIXES = (0, 1, 59, 62, 63, 64, 127, 130)
"""Around the borders of a block."""


def make(batch, width, dtype, seed):
    """Features full of numbers, and shuffled block tables."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randperm(batch * MAX_BLOCKS, generator=generator).view(batch, MAX_BLOCKS).int()
    features = torch.randn(batch * MAX_BLOCKS, BLOCK_TOKENS, width, generator=generator).to(dtype)
    return generator, table, features


def paths(generator, num_out):
    """Ascending nodes that were accepted, then -1."""
    path = torch.full((len(num_out), NODES), -1, dtype=torch.int32)
    for row, count in enumerate(num_out):
        nodes = torch.randperm(NODES - 1, generator=generator)[: count - 1].sort().values + 1
        path[row, : len(nodes)] = nodes.int()
    return path


rows = st.lists(
    st.tuples(st.integers(0, NODES), st.integers(1, NODES), st.sampled_from(PREFIXES)), min_size=1, max_size=3
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(rows=rows, cols=st.sampled_from((1, 24, 40)), has_verdict=st.booleans(), seed=st.integers(0, 99))
def test_rows_of_committed_nodes_are_kept_and_all_else_stays(dtype, rows, cols, has_verdict, seed):
    """A row without nodes keeps nothing, whatever its verdict says."""
    counts, num_out, prefixes = zip(*rows, strict=True)
    generator, table, features = make(len(rows), 3 * cols, dtype, seed)
    x = torch.randn(len(rows), NODES, cols, generator=generator).to(dtype)
    verdict = (paths(generator, num_out), torch.tensor(num_out).int()) if has_verdict else (None, None)
    place = torch.tensor(counts).int(), torch.tensor(prefixes).int(), table
    attrs = {"column": cols}
    (want,) = REFERENCES["keep_features"](attrs, x, *verdict, *place, features)
    keep_features(features, x, *verdict, *place, **attrs)
    assert torch.equal(features, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    rows=rows, cols=st.sampled_from((1, 24, 1025)), column=st.sampled_from((0, 7)), seed=st.integers(0, 99)
)
def test_a_node_reads_the_position_before_its_own(dtype, rows, cols, column, seed):
    counts, _, prefixes = zip(*rows, strict=True)
    _, table, features = make(len(rows), cols + 7, dtype, seed)
    live = torch.arange(NODES) < torch.tensor(counts)[:, None]
    depth = torch.where(live, torch.arange(NODES), 10**8).int()
    attrs = {"column": column, "width": cols}
    place = table, torch.tensor(prefixes).int(), torch.tensor(counts).int()
    out = torch.full((len(rows), NODES, cols), torch.nan, dtype=dtype)
    read_features(out, features, depth, *place, **attrs)
    assert torch.equal(out, REFERENCES["read_features"](attrs, features, depth, *place)[0])


def test_columns_that_the_features_do_not_have_are_refused():
    _, table, features = make(1, 24, torch.float32, 0)
    one = torch.ones(1).int()
    with pytest.raises(ContractError, match="columns of keep_features: got 16 from 16 on, need 24"):
        keep_features(features, torch.zeros(1, 2, 16), None, None, one, one, table, column=16)
    with pytest.raises(ContractError, match="out of read_features"):
        depth = torch.zeros(1, 2).int()
        read_features(torch.zeros(1, 2, 8).half(), features, depth, table, one, one, column=0, width=8)
