"""A step takes the smallest bucket that holds it.

Run: pytest tests/runtime/test_buckets.py
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspec.core.errors import CapacityError
from tspec.core.tree import MAX_NODES
from tspec.runtime.buckets import NODES, smallest_bucket


@settings(deadline=None)
@given(st.integers(1, 100), st.integers(1, MAX_NODES))
def test_the_bucket_holds_the_step_and_no_smaller_one_does(rows, nodes):
    bucket = smallest_bucket(rows, nodes)
    assert bucket.rows >= rows and bucket.nodes >= nodes
    assert bucket.rows == 1 or bucket.rows // 2 < rows
    assert not [size for size in NODES if nodes <= size < bucket.nodes]


def test_rows_are_powers_of_two():
    assert {smallest_bucket(rows, 1).rows for rows in range(1, 17)} == {1, 2, 4, 8, 16}


def test_a_bucket_of_any_size_holds_itself():
    for size in NODES:
        assert str(smallest_bucket(4, size)) == f"4x{size}"


def test_a_tree_larger_than_all_buckets_is_refused():
    assert NODES[-1] == MAX_NODES
    with pytest.raises(CapacityError, match="nodes of a tree: got 65, need at most 64"):
        smallest_bucket(1, 65)
