"""KV blocks of the pool: who may read and write which, and which text they hold. The memory is the executor's.

A block is free; or some tables refer to it; or it rests: nobody refers to it, but it still holds a known text, until
it is evicted. Full blocks of committed tokens are known, and any sequence of the same text may refer to them. All
others are private: one table refers to them, nothing finds them. Passes write behind the committed text only, where
all blocks are private.
"""

from collections import Counter
from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np

from tspec.core.shapes import BLOCK_TOKENS, blocks_for
from tspec.runtime.prefix_cache import BlockKey, PrefixCache, block_key

Tokens = List[int] | np.ndarray
"""Token ids of a text, from its first."""

MIN_ROW_BLOCKS = 16


@dataclass(slots=True)
class PrefixStats:
    """What prefix sharing saved, since the start.

    queried_tokens   tokens of the texts that were looked up
    hit_tokens       those of them whose keys and values were there
    evictions        known blocks whose memory went to another text
    """

    queried_tokens: int = 0
    hit_tokens: int = 0
    evictions: int = 0


class BlockTable:
    """The blocks of one sequence, in order. Only KvBlocks changes it, and never while a pass reads it.

    blocks             the block numbers
    num_committed      slots that hold keys and values of committed tokens
    num_known          leading blocks that are known, and so may have other readers
    num_shared_tokens  tokens that need no pass, since another sequence computed them
    may_reuse          whether this sequence may take what others computed
    """

    __slots__ = ("_row", "blocks", "may_reuse", "num_committed", "num_known", "num_shared_tokens")

    def __init__(self, *, may_reuse: bool = True) -> None:
        self.blocks: list[int] = []
        self.num_committed = 0
        self.num_known = 0
        self.num_shared_tokens = 0
        self.may_reuse = may_reuse
        self._row = np.zeros(MIN_ROW_BLOCKS, dtype=np.int32)

    @property
    def row(self) -> np.ndarray:
        """The blocks as int32 [blocks]: a view to copy into the inputs of a pass."""
        return self._row[: len(self.blocks)]

    @property
    def num_slots(self) -> int:
        """Slots that the blocks have."""
        return len(self.blocks) * BLOCK_TOKENS

    @property
    def last_known(self) -> int | None:
        """The last known block: the parent of the next one."""
        return self.blocks[self.num_known - 1] if self.num_known else None

    def append(self, blocks: List[int]) -> None:
        """Add blocks at the end."""
        start, end = len(self.blocks), len(self.blocks) + len(blocks)
        if end > len(self._row):
            self._row = np.concatenate([self._row, np.zeros(max(end, len(self._row)), dtype=np.int32)])
        self._row[start:end] = blocks
        self.blocks += blocks

    def replace(self, number: int, block: int) -> None:
        """Let another block take a place."""
        self.blocks[number] = block
        self._row[number] = block

    def cut(self, num_blocks: int) -> list[int]:
        """Keep so many blocks, and return the others."""
        dropped = self.blocks[num_blocks:]
        del self.blocks[num_blocks:]
        return dropped


class KvBlocks:
    """Gives blocks 0 … num_blocks - 1 to tables, and known ones to several at a time.

    Sequences of one text hold it once: when a table commits a block whose text is known already, it takes the known
    block in place of its own. The two have the same bits, since a row's bits depend on no other row and on no bucket.

    Cost: each call is proportional to the blocks that it touches. No call but `check` and `forget` looks at the pool.
    """

    def __init__(self, num_blocks: int, *, share_prefixes: bool = True) -> None:
        self.num_blocks = num_blocks
        self.stats = PrefixStats()
        self._shares = share_prefixes
        self._cache = PrefixCache(num_blocks)
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_refs = [0] * num_blocks
        self._tables: set[BlockTable] = set()

    @property
    def num_free(self) -> int:
        """Blocks that a table can still get: free ones, and resting ones after eviction."""
        return len(self._free) + self._cache.num_resting

    @property
    def num_cached(self) -> int:
        """Blocks that nobody refers to, but that hold a known text."""
        return self._cache.num_resting

    @property
    def usage(self) -> float:
        """Fraction of the pool that sequences refer to."""
        return 1 - self.num_free / self.num_blocks if self.num_blocks else 0.0

    def match(self, tokens: Tokens) -> list[int]:
        """Return the blocks of the longest known prefix of a text. Changes nothing.

        The last token is left out: a pass has to compute it, since what follows it is not stored.
        """
        return self._cache.walk(None, tokens, 0, _num_reusable(tokens)) if self._shares else []

    def start(self, tokens: Tokens, num_slots: int = 0, *, reuse: bool = True) -> BlockTable | None:
        """Return a table for a text, which refers to the blocks of `match` and has at least `num_slots` slots.

        None, and nothing changed, when the pool cannot give these. `reuse=False` is for a sequence that has to compute
        each token of its prompt itself.
        """
        table = BlockTable(may_reuse=reuse and self._shares)
        shared = self.match(tokens) if reuse else []
        missing = blocks_for(num_slots) - len(shared)
        num_waking = sum(self._num_refs[block] == 0 for block in shared)
        if missing > self.num_free - num_waking:
            return None
        self._tables.add(table)
        self.stats.queried_tokens += len(tokens) if table.may_reuse else 0
        self._share(table, shared)
        table.append([self._take() for _ in range(missing)])
        return table

    def catch_up(self, table: BlockTable, tokens: Tokens) -> int:
        """Let a sequence that is still in its prompt take what others have computed of it since; call between passes.

        Returns how many tokens it gained. Blocks behind the new `num_committed` are given back: `grow` comes next.
        """
        self._check_writable(table)
        if not table.may_reuse:
            return 0
        found = self._cache.walk(table.last_known, tokens, table.num_known, _num_reusable(tokens))
        if not found:
            return 0
        before = table.num_committed
        self._let_go(table.cut(table.num_known))
        table.num_committed = table.num_known * BLOCK_TOKENS
        table.num_shared_tokens -= before - table.num_committed
        self.stats.hit_tokens -= before - table.num_committed
        self._share(table, found)
        return table.num_committed - before

    def next_key(self, table: BlockTable, tokens: Tokens) -> BlockKey | None:
        """Return what the next block of a prompt will be known by, None where nobody can take it from another.

        Of several sequences with the same key in one step, all but one had better wait, and catch up after it.
        """
        if not table.may_reuse or table.num_known >= _num_reusable(tokens):
            return None
        return block_key(table.last_known, tokens, table.num_known)

    def grow(self, table: BlockTable, num_slots: int) -> bool:
        """Give a table at least `num_slots` slots. False, and nothing changed, when the pool cannot give them."""
        self._check_writable(table)
        missing = blocks_for(num_slots) - len(table.blocks)
        if missing > self.num_free:
            return False
        table.append([self._take() for _ in range(missing)])
        return True

    def commit(
        self, table: BlockTable, tokens: Tokens, num_committed: int, num_shareable: int | None = None
    ) -> None:
        """Note that the first `num_committed` slots hold the keys and values of `tokens`; call after the pass.

        Blocks that are now full become known, with `num_shareable` only those of so many tokens: a proposer's cache
        may be behind. Where the same text is known already, the table takes that block, and
        its own is free again.
        """
        self._check_writable(table)
        assert table.num_committed <= num_committed <= min(len(tokens), table.num_slots), num_committed
        table.num_committed = num_committed
        if self._shares:
            num_full = num_committed if num_shareable is None else min(num_committed, num_shareable)
            for number in range(table.num_known, num_full // BLOCK_TOKENS):
                self._make_known(table, block_key(table.last_known, tokens, number))

    def shrink(self, table: BlockTable, num_slots: int) -> None:
        """Take back blocks that `num_slots` slots do not need: those for candidates behind the committed text."""
        assert table in self._tables, "the table was released"
        assert num_slots >= table.num_committed, (num_slots, table.num_committed)
        self._let_go(table.cut(blocks_for(num_slots)))

    def release(self, table: BlockTable) -> None:
        """Take back all blocks. Known ones rest, and the next sequence of the same text may find them."""
        assert table in self._tables, "the table was released"
        self._tables.remove(table)
        self._let_go(table.cut(0))
        table.num_committed = table.num_known = 0

    def forget(self) -> None:
        """Free all resting blocks: after their memory was lost, or to measure without sharing."""
        while self._cache.num_resting:
            self._free.append(self._cache.evict())

    def _share(self, table: BlockTable, blocks: list[int]) -> None:
        """Let a table continue with known blocks."""
        for block in blocks:
            self._refer(block)
        table.append(blocks)
        table.num_known += len(blocks)
        table.num_committed = table.num_known * BLOCK_TOKENS
        table.num_shared_tokens += len(blocks) * BLOCK_TOKENS
        self.stats.hit_tokens += len(blocks) * BLOCK_TOKENS

    def _make_known(self, table: BlockTable, key: BlockKey) -> None:
        """Give the next full block of a table its key, or the table the block that has it."""
        own = table.blocks[table.num_known]
        assert self._is_private(own), own
        known = self._cache.find(key)
        if known is None:
            self._cache.add(key, own)
        else:
            self._refer(known)
            table.replace(table.num_known, known)
            self._let_go([own])
        table.num_known += 1

    def _refer(self, block: int) -> None:
        if self._num_refs[block] == 0:
            self._cache.wake(block)
        self._num_refs[block] += 1

    def _take(self) -> int:
        """A block for one table: the free one whose memory was used last, else the one that rests longest."""
        if self._free:
            block = self._free.pop()
        else:
            block = self._cache.evict()
            self.stats.evictions += 1
        assert self._num_refs[block] == 0 and not self._cache.holds(block), block
        self._num_refs[block] = 1
        return block

    def _let_go(self, blocks: list[int]) -> None:
        """Drop one reference to each, the last block first: a child rests before its parent."""
        for block in reversed(blocks):
            self._num_refs[block] -= 1
            assert self._num_refs[block] >= 0, block
            if self._num_refs[block] > 0:
                continue
            if self._cache.holds(block):
                self._cache.rest(block)
            else:
                self._free.append(block)

    def _is_private(self, block: int) -> bool:
        return self._num_refs[block] == 1 and not self._cache.holds(block)

    def _check_writable(self, table: BlockTable) -> None:
        """A pass writes at `num_committed` and behind it; of two blocks at most, as it has up to 64 nodes."""
        assert table in self._tables, "the table was released"
        first = table.num_committed // BLOCK_TOKENS
        for block in table.blocks[first : first + 2]:
            assert self._is_private(block), block

    def check(self) -> None:
        """Assert all that holds between calls. Cost: the whole pool, for tests."""
        free, counts = set(self._free), Counter[int]()
        for table in self._tables:
            self._check_table(table)
            counts.update(table.blocks)
        assert self._num_refs == [counts[block] for block in range(self.num_blocks)]
        assert len(free) == len(self._free), "a block is free once"
        for block in range(self.num_blocks):
            is_resting = self._num_refs[block] == 0 and self._cache.holds(block)
            assert (block in free) + is_resting + (self._num_refs[block] > 0) == 1, block
        assert 0 <= self.stats.hit_tokens <= self.stats.queried_tokens
        self._cache.check(self._num_refs)

    def _check_table(self, table: BlockTable) -> None:
        assert table.row.tolist() == table.blocks
        assert len(set(table.blocks)) == len(table.blocks), "no block twice in one table"
        assert table.num_known <= (table.num_committed // BLOCK_TOKENS if self._shares else 0)
        assert table.num_shared_tokens <= table.num_committed <= table.num_slots
        for number, block in enumerate(table.blocks):
            assert self._cache.holds(block) if number < table.num_known else self._is_private(block), block


def _num_reusable(tokens: Tokens) -> int:
    return max(0, len(tokens) - 1) // BLOCK_TOKENS
