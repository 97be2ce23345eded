"""Which sequences run, and what each step does for whom: slots, KV blocks, chunks of prompts, preemption.

Decides and keeps the books; runs no pass and knows no tokens of the output.
"""

import heapq
from collections.abc import Callable, Iterable
from collections.abc import Sequence as List
from typing import NamedTuple

from tspec.core.shapes import blocks_for
from tspec.core.tree import MAX_NODES
from tspec.runtime.kv_blocks import BlockTable, KvBlocks
from tspec.runtime.sequence import Sequence


class Chunk(NamedTuple):
    """The next `num_tokens` tokens of a sequence's prompt, which go through the next pass."""

    sequence: Sequence
    num_tokens: int


class _Entry(NamedTuple):
    """A place in the queue. No two have the same arrival, so that sequences are never compared."""

    priority: int
    arrival: int
    sequence: Sequence


class Scheduler:
    """Sequences that wait, by priority and then in the order in which they came, and those that run.

    A running sequence holds a slot and a block table, which grows with it. Where the pool has nothing left, the
    sequence that came last among those of the least priority gives its blocks back, waits again, and is computed anew
    later.

    on_start   called with a sequence that has got a slot, on_stop with a slot that is given back
    """

    def __init__(
        self,
        kv: KvBlocks,
        *,
        max_num_seqs: int,
        on_start: Callable[[Sequence], None],
        on_stop: Callable[[int], None],
    ) -> None:
        self.kv = kv
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._on_start, self._on_stop = on_start, on_stop
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._queue: list[_Entry] = []
        self._waiting: dict[Sequence, _Entry] = {}
        self._num_added = 0

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences without a slot, the next one first."""
        return [entry.sequence for entry in sorted(self._waiting.values())]

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        sequence.arrival = self._num_added
        self._num_added += 1
        self._wait(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """Forget a sequence, wherever it is; False if it is nowhere. Cost: no more where many wait."""
        if sequence in self._waiting:
            self._leave_queue(sequence)
            return True
        if sequence in self.running:
            self._stop(sequence)
            return True
        return False

    def admit(self) -> None:
        """Give slots to waiting sequences in their order, while the pool can hold the texts that they start with.

        No sequence overtakes one that came before it and needs more: none waits for ever.
        """
        owed = sum(self._num_owed(each) for each in self.running)
        while self._free_slots and (sequence := self._next()) is not None:
            shared = self.kv.match(sequence.tokens) if sequence.may_reuse else []
            # Shared blocks may be resting ones, which count as free; each running sequence may soon need a block.
            need = blocks_for(len(sequence.tokens) + 1)
            if self.running and owed + need + len(self.running) > self.kv.num_free:
                return
            owed += need - len(shared)
            heapq.heappop(self._queue)
            self._leave_queue(sequence)
            self._start(sequence)

    def prefill_chunks(self, budget: int, *, leaves_roots: bool) -> list[Chunk]:
        """The chunks of prompts that the next pass takes; their slots are there. All of one kind of pass.

        Of several sequences that need the same block of the same text, the first computes it and the others wait.

        budget        tokens of all chunks together
        leaves_roots  whether the last token of each prompt is left to be a root: then `decoding` has the sequence
        """
        chunks: list[Chunk] = []
        keys = set()
        for sequence in [each for each in self.running if each.is_prefilling]:
            if sequence.slot < 0:  # gave its blocks to one before it
                continue
            if chunks and sequence.is_scored != chunks[0].sequence.is_scored:
                continue
            table = sequence.table
            assert table is not None
            self.kv.catch_up(table, sequence.tokens)
            sequence.prefix_len = table.num_committed
            key = self.kv.next_key(table, sequence.tokens)
            if key is not None and key in keys:
                continue
            keys.add(key)
            end = len(sequence.tokens) - 1 if leaves_roots else sequence.num_prefilled
            count = min(MAX_NODES, end - sequence.prefix_len, budget)
            if count > 0 and self._grow(sequence, sequence.prefix_len + count):
                chunks.append(Chunk(sequence, count))
                budget -= count
        return held_chunks(chunks)

    def reserve(self, decoding: List[Sequence], nodes: List[int]) -> list[int]:
        """Get the slots that each decoding sequence's tree of up to so many nodes needs; returns nodes that there are.

        0 for a sequence that had to give its blocks back. What chunks got before may be gone then: `held_chunks`.
        """
        granted = []
        for sequence, most in zip(decoding, nodes, strict=True):
            if sequence.slot < 0:
                granted.append(0)
            elif self.kv.grow(_table(sequence), sequence.prefix_len + most):
                granted.append(most)
            else:
                granted.append(1 if self._grow(sequence, sequence.prefix_len + 1) else 0)
        # What was given first may have been taken back for a sequence behind.
        return [min(count, _num_open(each)) for count, each in zip(granted, decoding, strict=True)]

    @property
    def is_decoding(self) -> bool:
        """Whether the prompt of a running sequence is done."""
        return any(not each.is_prefilling for each in self.running)

    def decoding(self) -> list[Sequence]:
        """The running sequences whose text is in the KV cache but for its newest token, which can be a root."""
        return [each for each in self.running if each.prefix_len == len(each.tokens) - 1]

    def _next(self) -> Sequence | None:
        """The waiting sequence whose turn it is."""
        while self._queue and not self._is_live(self._queue[0]):
            heapq.heappop(self._queue)
        return self._queue[0].sequence if self._queue else None

    def _leave_queue(self, sequence: Sequence) -> None:
        """Let a sequence wait no more. Its entry stays where it is until its turn comes, or most entries are such."""
        del self._waiting[sequence]
        if len(self._queue) > 2 * len(self._waiting):
            self._queue = list(self._waiting.values())
            heapq.heapify(self._queue)

    def _is_live(self, entry: _Entry) -> bool:
        return self._waiting.get(entry.sequence) is entry

    def _start(self, sequence: Sequence) -> None:
        table = self.kv.start(sequence.tokens, reuse=sequence.may_reuse)
        assert table is not None, "a table without new blocks can always be had"
        sequence.table, sequence.prefix_len = table, table.num_committed
        sequence.slot = self._free_slots.pop()
        self.running.append(sequence)
        sequence.stats.mark_admitted()
        self._on_start(sequence)

    def _grow(self, sequence: Sequence, num_slots: int) -> bool:
        """Get slots, if need be from candidates of others, then from the sequences behind this one."""
        table = _table(sequence)
        if self.kv.grow(table, num_slots):
            return True
        for other in self.running:
            self.kv.shrink(_table(other), other.prefix_len + 1)
        while not self.kv.grow(table, num_slots):
            last = max(self.running, key=lambda each: (each.priority, each.arrival))
            self.preempt(last)
            if last is sequence:
                return False
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Take back all that a running sequence holds; it waits in its old place, and is computed anew later."""
        self._stop(sequence)
        if sequence.is_scored:  # its passes come again, and give these again
            sequence.prompt_logprobs.clear()
        sequence.stats.num_preemptions += 1
        self.num_preemptions += 1
        self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        entry = _Entry(sequence.priority, sequence.arrival, sequence)
        self._waiting[sequence] = entry
        heapq.heappush(self._queue, entry)

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.stats.num_reused += _table(sequence).num_shared_tokens
        self.kv.release(_table(sequence))
        sequence.table, sequence.prefix_len = None, 0
        slot, sequence.slot = sequence.slot, -1
        self._free_slots.append(slot)
        self._on_stop(slot)  # last, as it is not ours and may raise

    def _num_owed(self, sequence: Sequence) -> int:
        """Blocks that a sequence still needs for the text that it starts with, and one token more."""
        return max(0, blocks_for(len(sequence.tokens) + 1) - len(_table(sequence).blocks))

    def check(self, others: Iterable[Sequence] = ()) -> None:
        """Assert what holds between steps. For tests."""
        self.kv.check()
        live = [entry for entry in self._queue if self._is_live(entry)]
        assert sorted(live) == sorted(self._waiting.values()) and len(self._queue) <= 2 * len(live)
        assert self._waiting.keys().isdisjoint(self.running)
        slots = [each.slot for each in self.running]
        assert sorted(slots + self._free_slots) == list(range(len(slots) + len(self._free_slots)))
        for sequence in (*self.waiting, *others):
            assert sequence.slot == -1 and sequence.table is None and sequence.prefix_len == 0
        for sequence in self.running:
            assert sequence.finish_reason is None
            assert _table(sequence).num_committed == sequence.prefix_len


def held_chunks(chunks: List[Chunk]) -> list[Chunk]:
    """What is left of chunks after slots were taken back for others."""
    held = [(sequence, min(count, _num_open(sequence))) for sequence, count in chunks]
    return [Chunk(sequence, count) for sequence, count in held if count > 0]


def _table(sequence: Sequence) -> BlockTable:
    assert sequence.table is not None, "a running sequence has a table"
    return sequence.table


def _num_open(sequence: Sequence) -> int:
    """Slots that a pass may write; 0 for a sequence that does not run."""
    return 0 if sequence.table is None else sequence.table.num_slots - sequence.prefix_len
