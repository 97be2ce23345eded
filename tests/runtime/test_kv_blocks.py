"""KV blocks: what is shared and what never is, eviction, limits, and a pool that stays as it is over many requests.

Run: pytest tests/runtime/test_kv_blocks.py
"""

import gc
import sys

import numpy as np
import pytest

from tspec.core.shapes import BLOCK_TOKENS
from tspec.runtime.kv_blocks import BlockTable, KvBlocks

B = BLOCK_TOKENS
RANDOM = np.random.default_rng(7)
LONG = RANDOM.integers(0, 50000, 8 * B).tolist()
OTHER = RANDOM.integers(0, 50000, 8 * B).tolist()


def begin(blocks: KvBlocks, tokens: list[int], **options) -> BlockTable:
    """A table with slots for a whole text, of which nothing but what is shared was computed."""
    table = blocks.start(tokens, len(tokens), **options)
    assert table is not None
    blocks.check()
    return table


def compute(blocks: KvBlocks, table: BlockTable, tokens: list[int]) -> None:
    """Prefill of all that is left of a text."""
    assert blocks.grow(table, len(tokens))
    blocks.commit(table, tokens, len(tokens))
    blocks.check()


def serve(blocks: KvBlocks, tokens: list[int]) -> int:
    """A whole request; returns how many of its tokens were shared."""
    table = begin(blocks, tokens)
    num_shared = table.num_shared_tokens
    compute(blocks, table, tokens)
    blocks.release(table)
    blocks.check()
    return num_shared


@pytest.mark.parametrize("prefix", [1, 63, 64, 65, 128])
def test_texts_that_differ_behind_a_prefix_share_its_full_blocks(prefix):
    """A, B, A: B shares what A and B begin with, A finds all of itself but its last token's block (case D17)."""
    blocks = KvBlocks(32)
    first, second = LONG[: 3 * B], LONG[:prefix] + OTHER[prefix : 3 * B]
    assert first[prefix] != second[prefix]
    assert serve(blocks, first) == 0
    assert serve(blocks, second) == prefix // B * B
    assert serve(blocks, first) == 2 * B
    assert serve(blocks, [*first, 1]) == 3 * B
    assert blocks.num_free == 32


@pytest.mark.parametrize("prefix", [1, 63, 64, 65, 128])
def test_texts_that_run_at_once_never_share_a_block_in_which_they_differ(prefix):
    blocks = KvBlocks(32)
    texts = [LONG[:prefix] + [number] * (2 * B) for number in range(3)]
    tables = []
    for text in texts:
        tables.append(begin(blocks, text))
        compute(blocks, tables[-1], text)
    for place in range(len(tables[0].blocks)):
        assert len({table.blocks[place] for table in tables}) == (1 if place < prefix // B else 3)


def test_a_block_is_found_by_all_of_the_text_before_it():
    """The same 64 tokens behind another beginning have other keys and values."""
    blocks = KvBlocks(16)
    serve(blocks, LONG[: 3 * B])
    assert blocks.match(OTHER[:B] + LONG[B : 3 * B]) == []
    assert blocks.match(LONG[B : 3 * B]) == []
    assert len(blocks.match(LONG[: 3 * B])) == 2
    serve(blocks, OTHER[:B] + LONG[B : 3 * B])
    assert blocks.num_cached == 6


def test_the_last_token_of_a_text_is_always_computed():
    blocks = KvBlocks(16)
    serve(blocks, LONG)
    found = {length: len(blocks.match(LONG[:length])) for length in (0, 1, 63, 64, 65, 127, 128, 129)}
    assert found == {0: 0, 1: 0, 63: 0, 64: 0, 65: 1, 127: 1, 128: 1, 129: 2}


def test_candidates_are_never_found():
    """Pitfall 15: a pass wrote three blocks of candidates behind a text, none was accepted."""
    blocks = KvBlocks(16)
    text, candidates = LONG[:100], LONG[100 : 4 * B]
    table = begin(blocks, text)
    compute(blocks, table, text)
    assert blocks.grow(table, 4 * B)
    blocks.commit(table, [*text, 9], 101)
    blocks.check()
    assert len(blocks.match(text + candidates)) == 1
    blocks.release(table)
    assert len(blocks.match(text + candidates)) == 1


def test_a_block_is_known_once_it_is_full_of_committed_tokens():
    blocks = KvBlocks(8)
    table = begin(blocks, LONG[:60])
    found = []
    for length in (60, 63, 64, 65):
        assert blocks.grow(table, length)
        blocks.commit(table, LONG[:length], length)
        found.append(len(blocks.match(LONG)))
    assert found == [0, 0, 1, 1]


def test_two_that_computed_the_same_text_hold_it_once_from_then_on():
    blocks = KvBlocks(16)
    text = LONG[: 2 * B + 9]
    one, two = begin(blocks, text), begin(blocks, text)
    assert set(one.blocks).isdisjoint(two.blocks)
    compute(blocks, one, text)
    assert blocks.num_free == 10
    compute(blocks, two, text)
    assert one.blocks[:2] == two.blocks[:2]
    assert one.blocks[2] != two.blocks[2]
    assert blocks.num_free == 12
    assert two.num_shared_tokens == 0  # it did compute them
    blocks.release(one)
    blocks.check()
    assert len(blocks.match([*text, *text])) == 2


def test_many_that_came_at_once_cost_one_prefill():
    """32 requests with one prefix of 2,000 tokens: the first computes, the others wait a step and catch up."""
    blocks = KvBlocks(128)
    texts = [np.array([7] * 2000 + [100 + number] * 20) for number in range(32)]
    tables = [blocks.start(text) for text in texts]
    num_computed = 0
    while any(table.num_committed < 2020 for table in tables):
        keys, counts = set(), []
        for table, text in zip(tables, texts, strict=True):
            blocks.catch_up(table, text)
            key = blocks.next_key(table, text)
            counts.append(0 if key in keys else min(B, 2020 - table.num_committed))
            keys |= {key} if key else set()
            assert blocks.grow(table, table.num_committed + counts[-1])
        for table, text, count in zip(tables, texts, counts, strict=True):
            blocks.commit(table, text, table.num_committed + count)
            num_computed += count
        blocks.check()
    assert num_computed == 2020 + 31 * (2020 - 31 * B)
    assert 128 - blocks.num_free == 31 + 32
    assert blocks.stats.hit_tokens == 31 * 31 * B


def test_catching_up_gives_back_what_was_begun():
    blocks = KvBlocks(8)
    text = LONG[: 3 * B]
    late = blocks.start(text, 3 * B)
    blocks.commit(late, text, 10)
    serve(blocks, text[: 2 * B])
    assert blocks.num_free == 5
    assert blocks.catch_up(late, text) == 2 * B - 10
    blocks.check()
    assert (late.num_committed, late.num_shared_tokens, late.num_known) == (2 * B, 2 * B - 10, 2)
    assert blocks.num_free == 6
    assert blocks.stats.hit_tokens == 2 * B - 10
    assert blocks.catch_up(late, text) == 0
    compute(blocks, late, text)


def test_a_sequence_that_must_compute_its_prompt_takes_nothing_but_gives():
    """Log-probabilities of a prompt need a pass for each of its tokens."""
    blocks = KvBlocks(16)
    serve(blocks, LONG[: 2 * B])
    table = begin(blocks, LONG[: 4 * B], reuse=False)
    assert table.num_shared_tokens == 0
    assert blocks.catch_up(table, LONG[: 4 * B]) == 0
    assert blocks.next_key(table, LONG[: 4 * B]) is None
    compute(blocks, table, LONG[: 4 * B])
    assert len(blocks.match(LONG)) == 4
    assert blocks.stats.queried_tokens == 2 * B


def test_without_sharing_nothing_is_kept():
    blocks = KvBlocks(8, share_prefixes=False)
    assert [serve(blocks, LONG[: 3 * B]) for _ in range(3)] == [0, 0, 0]
    assert (blocks.num_cached, blocks.num_free, blocks.stats.hit_tokens) == (0, 8, 0)
    table = begin(blocks, LONG)
    assert blocks.next_key(table, LONG) is None
    assert blocks.catch_up(table, LONG) == 0


def test_what_was_used_longest_ago_is_evicted_first_and_the_end_of_a_text_before_its_beginning():
    blocks = KvBlocks(6)
    old, new = LONG[: 3 * B], OTHER[: 3 * B]
    serve(blocks, old)
    serve(blocks, new)
    assert (
        serve(blocks, [*LONG[:B], 1]) == B
    )  # the beginning of the old text is used again; one block is evicted
    found = [len(blocks.match([*text, 0])) for text in (old, new)]
    assert found == [2, 3]
    begin(blocks, [5] * (2 * B))  # one is free, one is evicted
    assert [len(blocks.match([*text, 0])) for text in (old, new)] == [1, 3]
    begin(blocks, [6] * B)
    assert [len(blocks.match([*text, 0])) for text in (old, new)] == [1, 2]
    assert blocks.stats.evictions == 3


def test_blocks_that_someone_reads_are_not_evicted():
    blocks = KvBlocks(4)
    reader = begin(blocks, LONG[: 2 * B])
    compute(blocks, reader, LONG[: 2 * B])
    other = begin(blocks, OTHER[: 2 * B])
    assert blocks.num_free == 0
    assert not blocks.grow(other, 2 * B + 1)
    assert len(blocks.match(LONG)) == 2
    blocks.check()


def test_a_refusal_changes_nothing():
    """The shared blocks rest: they count as free, but not twice."""
    blocks = KvBlocks(4)
    serve(blocks, LONG[: 2 * B])
    before = (blocks.num_free, blocks.num_cached, blocks.match(LONG), blocks.stats.queried_tokens)
    assert before[:2] == (4, 2)
    assert blocks.start(LONG, 5 * B) is None
    table = blocks.start(OTHER, 3 * B)
    assert not blocks.grow(table, 5 * B)
    assert len(table.blocks) == 3
    blocks.release(table)
    blocks.check()
    assert blocks.start(LONG[: 4 * B], 4 * B) is not None
    assert blocks.num_free == 0


def test_a_table_may_grow_into_the_last_block_be_it_free_or_resting():
    blocks = KvBlocks(4)
    serve(blocks, LONG[: 2 * B])
    table = begin(blocks, OTHER[:B])
    assert blocks.grow(table, 4 * B)
    assert (blocks.num_free, blocks.stats.evictions, blocks.match(LONG)) == (0, 2, [])
    assert blocks.grow(table, B)  # which it has
    blocks.check()


def test_a_request_that_waits_for_memory_is_counted_once():
    blocks = KvBlocks(4)
    table = begin(blocks, OTHER[: 3 * B])
    assert [blocks.start(LONG[:70], 70) for _ in range(5)] == [None] * 5
    assert blocks.stats.queried_tokens == 3 * B
    blocks.release(table)
    begin(blocks, LONG[:70])
    assert blocks.stats.queried_tokens == 3 * B + 70


def test_blocks_for_candidates_go_back_and_the_committed_text_stays():
    blocks = KvBlocks(8)
    text = LONG[: B + 5]
    table = begin(blocks, text)
    compute(blocks, table, text)
    assert blocks.grow(table, 5 * B)
    blocks.shrink(table, B + 6)
    blocks.check()
    assert (len(table.blocks), blocks.num_free) == (2, 6)
    with pytest.raises(AssertionError):
        blocks.shrink(table, B + 4)


def test_nobody_grows_or_commits_into_a_block_that_others_may_read():
    """What each pass relies on: break it by hand, and the next call says so."""
    blocks = KvBlocks(8)
    serve(blocks, LONG[: 2 * B])
    table = begin(blocks, [*LONG[: 2 * B], 1])
    table.num_committed = B  # the next pass would write into a known block
    with pytest.raises(AssertionError):
        blocks.grow(table, 3 * B)
    with pytest.raises(AssertionError):
        blocks.commit(table, LONG, 2 * B)
    with pytest.raises(AssertionError):
        blocks.check()


@pytest.mark.parametrize("num_committed", [4, 6 * B, 2 * B + 1])
def test_a_commit_backwards_or_past_the_tokens_or_the_slots_is_our_own_fault(num_committed):
    blocks = KvBlocks(8)
    table = begin(blocks, LONG[: 2 * B])
    blocks.commit(table, LONG, 5)
    with pytest.raises(AssertionError):
        blocks.commit(table, LONG if num_committed > 2 * B + 1 else LONG[: 2 * B], num_committed)


def test_a_released_table_is_of_no_use():
    blocks = KvBlocks(8)
    table = begin(blocks, LONG[:B])
    blocks.release(table)
    assert (table.blocks, table.row.tolist(), table.num_committed) == ([], [], 0)
    for call in (
        lambda: blocks.release(table),
        lambda: blocks.shrink(table, 0),
        lambda: blocks.grow(table, 1),
        lambda: blocks.commit(table, [], 0),
        lambda: blocks.catch_up(table, LONG),
    ):
        with pytest.raises(AssertionError, match="released"):
            call()
    blocks.check()
    assert blocks.num_free == 8


def test_a_row_follows_its_blocks():
    blocks = KvBlocks(200)
    table = blocks.start([1])
    for num_slots in (1, 16 * B, 16 * B + 1, 40 * B, 150 * B):
        assert blocks.grow(table, num_slots)
        assert table.row.dtype == np.int32
        assert table.row.tolist() == table.blocks
    blocks.shrink(table, 3 * B)
    assert table.row.tolist() == table.blocks
    assert len(table.blocks) == 3


def test_memory_that_was_lost_is_forgotten():
    blocks = KvBlocks(8)
    serve(blocks, LONG[: 3 * B])
    reader = begin(blocks, LONG[: B + 1])
    blocks.forget()
    blocks.check()
    assert len(blocks.match(LONG)) == 1  # which the reader still refers to
    blocks.release(reader)
    blocks.forget()
    assert (blocks.match(LONG), blocks.num_cached, blocks.num_free) == ([], 0, 8)


def test_usage_counts_each_block_that_someone_refers_to_once():
    blocks = KvBlocks(10)
    assert blocks.usage == 0
    tables = []
    for _ in range(2):
        tables.append(begin(blocks, LONG[: 2 * B + 1]))
        compute(blocks, tables[-1], LONG[: 2 * B + 1])
    assert blocks.usage == pytest.approx(0.4)
    for table in tables:
        blocks.release(table)
    assert (blocks.usage, blocks.num_cached) == (0, 2)
    assert KvBlocks(0).usage == 0


def churn(blocks: KvBlocks, numbers: range) -> None:
    """Requests of one block and a half; every second one begins as one before it did."""
    for number in numbers:
        text = np.full(B + 30, number // 2)
        table = blocks.start(text, len(text))
        blocks.commit(table, text, len(text))
        blocks.release(table)


def num_calls(blocks: KvBlocks, numbers: range) -> int:
    """Calls of Python and C functions that a churn takes: its time without a clock."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        churn(blocks, numbers)
    finally:
        sys.setprofile(None)
    return count


def test_after_100_000_requests_a_request_takes_what_it_took_at_first():
    blocks, large = KvBlocks(50), KvBlocks(50_000)
    churn(blocks, range(2000))
    first = num_calls(blocks, range(2000, 3000))
    gc.collect()
    before = sys.getallocatedblocks()
    churn(blocks, range(3000, 99_000))
    gc.collect()
    assert sys.getallocatedblocks() - before < 1000
    assert num_calls(blocks, range(99_000, 100_000)) == first
    assert blocks.stats.hit_tokens == 50_000 * B
    assert blocks.num_free == 50
    blocks.check()
    churn(large, range(2000))
    assert num_calls(large, range(2000, 3000)) <= first
