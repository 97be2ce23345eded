"""KV blocks under any sequence of calls hold what a plain model of texts says, and no text ever reads another's.

The memory behind the blocks is simulated: each slot holds a hash of all tokens up to its own, as a real key and value
depend on them all.

Run: python -m pytest tests/property/test_kv_blocks_machine.py
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tspec.core.shapes import BLOCK_TOKENS, blocks_for
from tspec.runtime.kv_blocks import BlockTable, KvBlocks

GARBAGE = -1
NUM_BLOCKS = 9

pieces = st.tuples(st.integers(0, 1), st.sampled_from([1, 63, 64, 65, 128]))
mixed = st.lists(pieces, min_size=1, max_size=3)
alike = st.sampled_from([[(0, 128), (1, count)] for count in (1, 10, 64, 65, 130)])
texts = (mixed | alike).map(lambda runs: [token for token, count in runs for _ in range(count)])
picks = st.integers(0, 5)


class Text:
    """What one sequence is, in the most obvious way."""

    table: BlockTable

    def __init__(self, tokens: list[int]) -> None:
        self.tokens: list[int] = []
        self.hashes: list[int] = []
        self.append(tokens)
        self.num_committed = 0
        self.num_blocks = 0

    def append(self, tokens: list[int]) -> None:
        for token in tokens:
            self.tokens.append(token)
            self.hashes.append(hash((self.hashes[-1] if self.hashes else 0, token)))

    def full_prefixes(self) -> list[tuple[int, ...]]:
        return [
            tuple(self.tokens[: end * BLOCK_TOKENS])
            for end in range(1, self.num_committed // BLOCK_TOKENS + 1)
        ]


class KvBlocksMachine(RuleBasedStateMachine):
    """`resting` are prefixes that no text has but that are still known, oldest first."""

    @initialize(shares=st.sampled_from([True, True, True, False]))
    def begin(self, shares):
        self.shares = shares
        self.blocks = KvBlocks(NUM_BLOCKS, share_prefixes=shares)
        self.memory = np.full((NUM_BLOCKS, BLOCK_TOKENS), GARBAGE)
        self.running: list[Text] = []
        self.resting: list[tuple[int, ...]] = []
        self.num_evicted = 0

    # The model

    def live(self) -> set[tuple[int, ...]]:
        return {prefix for text in self.running for prefix in text.full_prefixes()} if self.shares else set()

    def num_free(self) -> int:
        """Free or resting."""
        known = [text.num_committed // BLOCK_TOKENS if self.shares else 0 for text in self.running]
        num_private = sum(text.num_blocks - count for text, count in zip(self.running, known, strict=True))
        return NUM_BLOCKS - len(self.live()) - num_private

    def longest_match(self, tokens: list[int]) -> int:
        known, found = self.live() | set(self.resting), 0
        while (found + 1) * BLOCK_TOKENS < len(tokens) and tuple(
            tokens[: (found + 1) * BLOCK_TOKENS]
        ) in known:
            found += 1
        return found

    def settle(self) -> None:
        """After the texts changed: what they use again rests no more, and what does not fit is evicted."""
        live = self.live()
        self.resting = [prefix for prefix in self.resting if prefix not in live]
        while len(self.resting) > self.num_free():
            self.resting.pop(0)
            self.num_evicted += 1

    def write(self, text: Text, values: list[int]) -> None:
        """What a pass does behind the committed text."""
        for slot, value in enumerate(values, start=text.num_committed):
            self.memory[text.table.row[slot // BLOCK_TOKENS], slot % BLOCK_TOKENS] = value

    def grow(self, text: Text, num_slots: int) -> bool:
        missing = blocks_for(num_slots) - text.num_blocks
        fits = missing <= self.num_free()
        assert self.blocks.grow(text.table, num_slots) == fits
        if fits:
            text.num_blocks += max(0, missing)
            self.settle()
        return fits

    # What the engine does

    @precondition(lambda self: len(self.running) < 8)
    @rule(
        tokens=texts,
        slots=st.sampled_from(["none", "text", "more"]),
        reuse=st.sampled_from([True, True, True, False]),
        count=st.sampled_from([0, 64, 100, 1000, 1000]),
        num_twins=st.sampled_from([0, 0, 1, 2]),
    )
    def start(self, tokens, slots, reuse, count, num_twins):
        """One that computes, and others of the same text that came at the same time and wait."""
        num_slots = {"none": 0, "text": len(tokens), "more": len(tokens) + 65}[slots]
        first = self.start_one(tokens, num_slots, reuse)
        for _ in range(num_twins):
            self.start_one(tokens, 0, True)
        if first:
            self.advance(first, count)

    def start_one(self, tokens: list[int], num_slots: int, reuse: bool) -> Text | None:
        found = self.longest_match(tokens) if reuse and self.shares else 0
        text = Text(tokens)
        text.num_committed, text.num_blocks = found * BLOCK_TOKENS, max(found, blocks_for(num_slots))
        self.running.append(text)
        fits = self.num_free() >= 0
        table = self.blocks.start(np.array(tokens), num_slots, reuse=reuse)
        assert (table is not None) == fits
        if not fits:
            self.running.pop()
            return None
        text.table = table
        self.settle()
        return text

    def advance(self, text: Text, count: int) -> None:
        """The next chunk of a prompt."""
        end = min(len(text.tokens), text.num_committed + count)
        if self.grow(text, end):
            self.write(text, text.hashes[text.num_committed : end])
            text.num_committed = end
            self.blocks.commit(text.table, text.tokens, end)
            self.settle()

    @precondition(lambda self: self.running)
    @rule(pick=picks, count=st.sampled_from([1, 30, 64, 65, 130]))
    def prefill(self, pick, count):
        self.advance(self.running[pick % len(self.running)], count)

    @precondition(lambda self: self.running)
    @rule(pick=picks, token=st.integers(0, 1), num_nodes=st.integers(1, 64), refused=st.integers(0, 64))
    def verify(self, pick, token, num_nodes, refused):
        """A root, candidates, some of them accepted; the bonus token is not computed yet."""
        text = self.running[pick % len(self.running)]
        start, num_out = text.num_committed, max(1, num_nodes - refused)
        if start < len(text.tokens) or not self.grow(text, start + num_nodes):
            return
        self.write(text, [GARBAGE] * num_nodes)
        text.append([token] * num_out)
        self.write(text, text.hashes[start:])
        text.num_committed += num_out
        self.blocks.commit(text.table, [*text.tokens, 1 - token], text.num_committed)
        self.settle()

    @rule()
    def catch_up(self):
        for text in self.running:
            before, found = text.num_committed, self.longest_match(text.tokens)
            if text.table.may_reuse and found > before // BLOCK_TOKENS:
                text.num_committed, text.num_blocks = found * BLOCK_TOKENS, found
            assert self.blocks.catch_up(text.table, text.tokens) == text.num_committed - before
            self.settle()

    @precondition(lambda self: self.running)
    @rule(pick=picks, spare=st.sampled_from([0, 1, 64]))
    def shrink(self, pick, spare):
        text = self.running[pick % len(self.running)]
        text.num_blocks = min(text.num_blocks, blocks_for(text.num_committed + spare))
        self.blocks.shrink(text.table, text.num_committed + spare)

    @precondition(lambda self: self.running)
    @rule(pick=picks, forgets=st.sampled_from([False] * 19 + [True]))
    def release(self, pick, forgets):
        """The end, an abort or a preemption: they are the same here. Seldom the memory of unused blocks is lost."""
        text = self.running.pop(pick % len(self.running))
        live = self.live()
        if self.shares:
            self.resting += [prefix for prefix in reversed(text.full_prefixes()) if prefix not in live]
        self.blocks.release(text.table)
        if forgets:
            self.resting = []
            self.blocks.forget()

    @invariant()
    def blocks_are_in_order(self):
        self.blocks.check()

    @invariant()
    def counts_are_those_of_the_model(self):
        assert self.blocks.num_free == self.num_free()
        assert self.blocks.num_cached == len(self.resting)
        assert self.blocks.stats.evictions == self.num_evicted
        assert [len(text.table.blocks) for text in self.running] == [text.num_blocks for text in self.running]
        assert [text.table.num_committed for text in self.running] == [
            text.num_committed for text in self.running
        ]

    @invariant()
    def each_text_reads_its_own_keys_and_values(self):
        for text in self.running:
            stored = self.memory[text.table.row].reshape(-1)[: text.num_committed]
            assert stored.tolist() == text.hashes[: text.num_committed]

    def teardown(self):
        for _ in range(len(getattr(self, "running", []))):
            self.release(0, False)
            self.blocks.check()
        if hasattr(self, "blocks"):
            assert self.blocks.num_free == NUM_BLOCKS


TestKvBlocks = KvBlocksMachine.TestCase
TestKvBlocks.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
