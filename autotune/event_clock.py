"""Times launches on a device by its own clock: events around them, L2 emptied before."""

from collections.abc import Callable
from typing import Any

FLUSH_BYTES = 256 << 20
"""More than the L2 of any part."""


class EventClock:
    """`cuda` is torch.cuda, or what stands for it; `flush` overwrites FLUSH_BYTES on the device."""

    def __init__(self, cuda: Any, flush: Callable[[], object]) -> None:
        self._cuda = cuda
        self._flush = flush
        self._start, self._end = (cuda.Event(enable_timing=True) for _ in "12")

    def seconds(self, run: Callable[[], object]) -> float:
        """Device time of what `run` queues, with nothing of it in L2."""
        self._flush()
        self._start.record()
        run()
        self._end.record()
        self._cuda.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3
