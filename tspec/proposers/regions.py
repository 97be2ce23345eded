"""Which part of one growing range of memory is whose. Hands out numbers only; owns no memory itself."""


class Regions:
    """Regions whose sizes are powers of two, each handed out again only at its own size.

    `end` is how far the range has been used: memory behind it must reach at least so far.
    """

    def __init__(self) -> None:
        self.end = 0
        self._num_taken = 0
        self._free: dict[int, list[int]] = {}

    def take(self, capacity: int) -> int:
        """Return the start of a region that nobody else holds."""
        self._num_taken += 1
        free = self._free.get(capacity)
        if free:
            return free.pop()
        start = self.end
        self.end += capacity
        return start

    def give_back(self, start: int, capacity: int) -> None:
        """Free a region. After the last one the range starts from its beginning, without gaps."""
        self._num_taken -= 1
        if self._num_taken == 0:
            self.end = 0
            self._free.clear()
        else:
            self._free.setdefault(capacity, []).append(start)
