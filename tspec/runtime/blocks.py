"""KV blocks of the pool: who may write where. Numbers only; the memory is the executor's."""

from tspec.core.errors import CapacityError


class BlockPool:
    """Gives out block numbers 0 … num_blocks - 1, each to one sequence at a time, last returned first."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that `take` can still give."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, all or none. Errors: CapacityError when fewer are free."""
        if count > len(self._free):
            raise CapacityError(
                "KV blocks",
                got=f"{len(self._free)} free of {self.num_blocks}",
                need=count,
                fix="Wait for a sequence to end, or lower max_model_len.",
            )
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks. A block that is free already is our own bug."""
        free = set(self._free)
        for block in reversed(blocks):
            assert block not in free, block
            self._free.append(block)
