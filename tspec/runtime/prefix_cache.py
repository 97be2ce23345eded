"""Which block holds which text: a tree of full KV blocks, and the order in which unused ones are evicted.

Numbers only, and no counting of references: that is KvBlocks. What is known here is committed text, never candidates.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence as List

import numpy as np

from tspec.core.shapes import BLOCK_TOKENS

BlockKey = tuple[int | None, bytes]
"""The block before it (None for the first of a text), and its own 64 token ids."""


def block_key(parent: int | None, tokens: List[int] | np.ndarray, number: int) -> BlockKey:
    """Return the key of block `number` of a text, where `parent` holds the text before it."""
    own = tokens[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS]
    assert len(own) == BLOCK_TOKENS, (number, len(tokens))
    return parent, np.asarray(own, dtype=np.int32).tobytes()


class PrefixCache:
    """Finds blocks by the text up to their end.

    A parent stays known as long as one of its children is, so its number stands for the whole text before a block. A
    look-up compares that number and the token ids themselves: no collision of hashes can mix two texts.

    A block rests while no sequence refers to it. The one that rests longest is evicted first. A sequence refers to all
    blocks of its text, and lays the last one to rest first, so a child is always evicted before its parent.
    """

    def __init__(self, num_blocks: int) -> None:
        self._block_of: dict[BlockKey, int] = {}
        self._key_of: list[BlockKey | None] = [None] * num_blocks
        self._num_children = [0] * num_blocks
        self._resting: OrderedDict[int, None] = OrderedDict()

    @property
    def num_known(self) -> int:
        """Blocks that a text may find."""
        return len(self._block_of)

    @property
    def num_resting(self) -> int:
        """Known blocks that no sequence refers to."""
        return len(self._resting)

    def holds(self, block: int) -> bool:
        """Whether a block is known, and so must never be written again."""
        return self._key_of[block] is not None

    def find(self, key: BlockKey) -> int | None:
        """Return the block of a key."""
        return self._block_of.get(key)

    def walk(self, parent: int | None, tokens: List[int] | np.ndarray, start: int, end: int) -> list[int]:
        """Return the known blocks start … end - 1 of a text, up to the first unknown; `parent` is the one before."""
        found: list[int] = []
        for number in range(start, end):
            parent = self._block_of.get(block_key(parent, tokens, number))
            if parent is None:
                break
            found.append(parent)
        return found

    def add(self, key: BlockKey, block: int) -> None:
        """Make a block known, whose parent is known, and which a sequence refers to."""
        parent = key[0]
        assert self._key_of[block] is None and key not in self._block_of, block
        assert parent is None or self._key_of[parent] is not None, (block, parent)
        self._block_of[key] = block
        self._key_of[block] = key
        if parent is not None:
            self._num_children[parent] += 1

    def rest(self, block: int) -> None:
        """Note that the last sequence let go of a block."""
        assert self._key_of[block] is not None and block not in self._resting, block
        self._resting[block] = None

    def wake(self, block: int) -> None:
        """Note that a sequence refers to a resting block again."""
        del self._resting[block]

    def evict(self) -> int:
        """Forget the block that rests longest, and return it."""
        block, _ = self._resting.popitem(last=False)
        key = self._key_of[block]
        assert key is not None and self._num_children[block] == 0, block
        del self._block_of[key]
        self._key_of[block] = None
        if key[0] is not None:
            self._num_children[key[0]] -= 1
        return block

    def check(self, num_refs: List[int]) -> None:
        """Assert all that holds between calls. Cost: the whole pool, for tests."""
        held = {block: key for block, key in enumerate(self._key_of) if key is not None}
        assert {key: block for block, key in held.items()} == self._block_of
        num_children = Counter(parent for parent, _ in held.values() if parent is not None)
        assert num_children.keys() <= held.keys(), "a known block has a known parent"
        assert self._num_children == [num_children[block] for block in range(len(self._key_of))]
        assert set(self._resting) == {block for block in held if num_refs[block] == 0}
        order = {block: place for place, block in enumerate(self._resting)}
        for block, (parent, _) in held.items():
            if parent in order:
                assert order.get(block, len(order)) < order[parent], "a child is evicted before its parent"
