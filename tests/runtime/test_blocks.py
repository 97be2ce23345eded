"""The block pool never gives a block to two holders, and gives all or none.

Run: pytest tests/runtime/test_blocks.py
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspec.core.errors import CapacityError
from tspec.core.shapes import BLOCK_TOKENS, blocks_for
from tspec.runtime.blocks import BlockPool


@settings(deadline=None)
@given(st.integers(0, 12), st.lists(st.integers(-5, 5), max_size=40))
def test_a_block_has_one_holder_at_a_time(num_blocks, turns):
    """A turn takes so many blocks, or gives back the holder of that number."""
    pool, holders = BlockPool(num_blocks), []
    for turn in turns:
        if turn < 0 and holders:
            pool.give_back(holders.pop(turn % len(holders)))
        elif 0 <= turn <= pool.num_free:
            holders.append(pool.take(turn))
        held = [block for blocks in holders for block in blocks]
        assert len(set(held)) == len(held)
        assert set(held) <= set(range(num_blocks))
        assert pool.num_free == num_blocks - len(held)


def test_more_than_is_free_is_refused_and_takes_nothing():
    pool = BlockPool(5)
    pool.take(2)
    with pytest.raises(CapacityError, match=r"KV blocks: got 3 free of 5, need 4\. Wait for"):
        pool.take(4)
    assert pool.num_free == 3
    assert len(pool.take(3)) == 3


def test_what_was_given_back_last_is_taken_first():
    """Its memory is the likeliest to be in a cache."""
    pool = BlockPool(8)
    first, second = pool.take(2), pool.take(2)
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(4) == [*second, *first]


@pytest.mark.parametrize("twice", [True, False])
def test_giving_back_a_free_block_is_our_own_fault(twice):
    pool = BlockPool(3)
    blocks = pool.take(1)
    if twice:
        pool.give_back(blocks)
    with pytest.raises(AssertionError):
        pool.give_back(blocks if twice else [2])


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)]
)
def test_a_block_holds_64_slots(tokens, blocks):
    assert BLOCK_TOKENS == 64
    assert blocks_for(tokens) == blocks
