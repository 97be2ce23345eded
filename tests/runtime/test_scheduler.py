"""Who runs next: by priority, then in the order in which requests came, whoever left or gave way meanwhile.

Run: pytest tests/runtime/test_scheduler.py
"""

import gc
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sequences import sequence_of

from tspec.core.shapes import BLOCK_TOKENS
from tspec.runtime.kv_blocks import KvBlocks
from tspec.runtime.scheduler import Scheduler
from tspec.runtime.sequence import Sequence

PICKS = st.integers(0, 1 << 16)
STEPS = st.lists(
    st.tuples(st.just("add"), st.integers(-1, 1), st.sampled_from([1, 63, 64, 130]))
    | st.tuples(st.sampled_from(["remove", "remove", "preempt"]), PICKS, st.none())
    | st.tuples(st.just("admit"), st.none(), st.none()),
    max_size=60,
)


def scheduler_of(num_blocks: int = 64, max_num_seqs: int = 2) -> Scheduler:
    return Scheduler(
        KvBlocks(num_blocks),
        max_num_seqs=max_num_seqs,
        prefill_alone=512,
        prefill_beside=64,
        on_start=lambda sequence: None,
        on_stop=lambda slot: None,
    )


def add(scheduler: Scheduler, *priorities: int, length: int = 3) -> list[Sequence]:
    added = [sequence_of([1] * length, priority=priority) for priority in priorities]
    for sequence in added:
        scheduler.add(sequence)
    return added


def take_all(scheduler: Scheduler) -> list[Sequence]:
    """Let each sequence run in its turn and leave; returns them in that order."""
    order = []
    while scheduler.num_waiting:
        scheduler.admit()
        order += scheduler.running
        for sequence in list(scheduler.running):
            assert scheduler.remove(sequence)
        scheduler.check()
    return order


@settings(deadline=None, max_examples=150)
@given(steps=STEPS, num_blocks=st.integers(3, 8), max_num_seqs=st.integers(1, 4))
def test_turns_are_those_of_a_sorted_list_whoever_leaves_or_gives_way(steps, num_blocks, max_num_seqs):
    scheduler = scheduler_of(num_blocks, max_num_seqs)
    came: list[Sequence] = []  # in their order
    running: set[Sequence] = set()
    for what, number, length in steps:
        if what == "add":
            came += add(scheduler, number, length=length)
        elif what == "admit":
            before = turns(came, running)
            scheduler.admit()
            started = [each for each in before if each in scheduler.running]
            assert before[: len(started)] == started, "nobody is overtaken"
            assert started or not before or running, "an empty pool has room for one"
            running.update(started)
        elif what == "remove" and came:
            sequence = came.pop(number % len(came))
            running.discard(sequence)
            assert scheduler.remove(sequence)
            assert not scheduler.remove(sequence)
        elif what == "preempt" and running:
            sequence = sorted(running, key=came.index)[number % len(running)]
            running.remove(sequence)
            scheduler.preempt(sequence)
        scheduler.check()
        assert scheduler.waiting == turns(came, running)
        assert (scheduler.num_waiting, set(scheduler.running)) == (len(came) - len(running), running)
    for sequence in running:
        scheduler.remove(sequence)
    assert take_all(scheduler) == turns(came, running)


def turns(came: list[Sequence], running: set[Sequence]) -> list[Sequence]:
    return sorted((each for each in came if each not in running), key=lambda each: each.priority)


@pytest.mark.parametrize("order", [1, -1])
def test_twenty_thousand_waiting_requests_can_be_dropped_at_once(order):
    """Processor time, of which a scan of the queue for each would take minutes."""
    scheduler = scheduler_of()
    kept = add(scheduler, 0, 0)
    scheduler.admit()
    waiting = add(scheduler, *[number % 3 for number in range(20_000)])
    kept += add(scheduler, 1, 0, 2)
    start_s = time.process_time()
    assert all(scheduler.remove(sequence) for sequence in waiting[::order])
    assert time.process_time() - start_s < 1
    scheduler.check()
    assert (scheduler.num_waiting, len(scheduler.running)) == (3, 2)
    for sequence in kept[:2]:
        scheduler.remove(sequence)
    assert take_all(scheduler) == [kept[3], kept[2], kept[4]]


def test_dropped_requests_are_soon_forgotten_while_others_wait_on():
    scheduler = scheduler_of()
    running = add(scheduler, 0, 0)
    scheduler.admit()
    first, dropped = add(scheduler, 0), add(scheduler, *[1] * 100)
    before = num_sequences()
    while dropped:
        scheduler.remove(dropped.pop())
        scheduler.check()
    assert before - num_sequences() >= 99, "the queue may hold one that left, beside one that waits"
    assert (scheduler.waiting, scheduler.running) == (first, running)


def num_sequences() -> int:
    gc.collect()
    return sum(isinstance(each, Sequence) for each in gc.get_objects())


def test_one_that_gave_way_runs_again_before_those_that_came_after_it():
    scheduler = scheduler_of(max_num_seqs=3)
    one, two, three, four = add(scheduler, 0, 0, 0, 0)
    scheduler.admit()
    scheduler.preempt(two)
    scheduler.preempt(one)
    assert scheduler.waiting == [one, two, four]
    assert (one.stats.num_preemptions, two.stats.num_preemptions, scheduler.num_preemptions) == (1, 1, 2)
    scheduler.remove(two)
    scheduler.admit()
    assert scheduler.running == [three, one, four]


def test_one_that_needs_more_than_there_is_holds_back_those_behind_it():
    """And runs before them: none waits for ever."""
    scheduler = scheduler_of(num_blocks=4, max_num_seqs=4)
    (small,) = add(scheduler, 0, length=BLOCK_TOKENS)
    scheduler.admit()
    (large,), others = add(scheduler, 0, length=3 * BLOCK_TOKENS), add(scheduler, 0, 0)
    scheduler.admit()
    assert scheduler.running == [small]
    (urgent,) = add(scheduler, -1)
    scheduler.admit()
    assert (scheduler.running, scheduler.waiting) == ([small, urgent], [large, *others])
    scheduler.remove(urgent)
    scheduler.remove(small)
    scheduler.admit()
    assert scheduler.running == [large]


def test_one_that_was_never_here_is_not_removed():
    scheduler, other = scheduler_of(), scheduler_of()
    (sequence,) = add(other, 0)
    assert not scheduler.remove(sequence)
    other.admit()
    assert not scheduler.remove(sequence)
    assert other.remove(sequence)


def decoding(scheduler: Scheduler, *priorities: int) -> list[Sequence]:
    """Sequences of one block, whose text is in the KV cache but for its newest token."""
    sequences = add(scheduler, *priorities, length=3)
    scheduler.admit()
    for sequence in sequences:
        write(scheduler, sequence, 3, num_tokens=1)
    return sequences


def write(scheduler: Scheduler, sequence: Sequence, num_slots: int, num_tokens: int | None = None) -> None:
    """What a pass does: it fills slots, and as many tokens come to the text unless another number is given."""
    own = scheduler.running.index(sequence)
    sequence.tokens += [own] * (num_slots if num_tokens is None else num_tokens)
    sequence.prefix_len += num_slots
    assert scheduler.kv.grow(sequence.table, sequence.prefix_len)
    scheduler.kv.commit(sequence.table, sequence.tokens, sequence.prefix_len)


def test_the_last_of_the_least_priority_gives_its_blocks_back():
    """Four sequences have two blocks each, which is all there is, and need a third."""
    scheduler = scheduler_of(num_blocks=8, max_num_seqs=4)
    one, urgent, less, last = decoding(scheduler, 0, -1, 1, 0)
    assert scheduler.running == [urgent, one, last, less]
    for sequence in scheduler.running:
        write(scheduler, sequence, 2 * BLOCK_TOKENS - 3)
    assert scheduler.kv.num_free == 0
    assert scheduler.reserve([1, 1, 1, 1]) == [1, 1, 0, 0]
    assert (scheduler.running, scheduler.waiting) == ([urgent, one], [last, less])
    assert [each.stats.num_preemptions for each in (one, urgent, less, last)] == [0, 0, 1, 1]
    scheduler.check()


def test_candidates_give_way_before_sequences_do():
    scheduler = scheduler_of(num_blocks=5)
    one, two = decoding(scheduler, 0, 0)
    assert scheduler.reserve([3 * BLOCK_TOKENS, 1]) == [3 * BLOCK_TOKENS, 1]
    write(scheduler, two, BLOCK_TOKENS - 3)
    assert (len(one.table.blocks), scheduler.kv.num_free) == (4, 0)
    assert scheduler.reserve([1, 1]) == [1, 1]
    assert (len(one.table.blocks), len(two.table.blocks), scheduler.kv.num_free) == (1, 2, 2)
    assert scheduler.num_preemptions == 0


def test_candidates_make_no_sequence_give_way():
    """They come down to the root alone, which has to have its slot."""
    scheduler = scheduler_of(num_blocks=3)
    decoding(scheduler, 0, 0)
    assert scheduler.reserve([2 * BLOCK_TOKENS, 2 * BLOCK_TOKENS]) == [1, 1]
    assert scheduler.num_preemptions == 0


@pytest.mark.parametrize(("num_decoding", "budget"), [(0, 512), (1, 64)])
def test_a_step_takes_so_many_prompt_tokens_and_less_beside_decoding(num_decoding, budget):
    scheduler = scheduler_of(num_blocks=200, max_num_seqs=20)
    if num_decoding:
        decoding(scheduler, *[0] * num_decoding)
    sequences = [sequence_of([number] * 100) for number in range(10)]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.admit()
    chunks = scheduler.prefill_chunks()
    assert sum(chunk.num_tokens for chunk in chunks) == budget
    assert [chunk.sequence for chunk in chunks] == sequences[: len(chunks)]
    assert max(chunk.num_tokens for chunk in chunks) == 64
