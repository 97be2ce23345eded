"""The threads of a pass: this one and workers that wait in native code, and sleep when no pass comes."""

import threading
import weakref

import numpy as np

from tspec.kernels.cpu import program, sync
from tspec.runtime.memory import address, allocate

MAX_LAUNCHES = 1 << 14
YIELDS_BEFORE_SLEEP = 20_000
"""Idle workers give up the CPU this often, some milliseconds in all, before they sleep until the next pass."""


class ThreadPool:
    """Runs bound programs on `num_threads` threads. One pass at a time; not to be shared between threads."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        size = sync.FIRST_COUNTER + 8 * program.COUNTERS_A_LAUNCH * MAX_LAUNCHES
        self._control = allocate(size)
        self._words = self._control.view(np.int64)
        self._wake = [threading.Event() for _ in range(1, num_threads)]
        self._threads = [
            threading.Thread(
                target=_serve,
                args=(self._control, number, num_threads, wake),
                name=f"tspec-{number}",
                daemon=True,
            )
            for number, wake in enumerate(self._wake, start=1)
        ]
        for thread in self._threads:
            thread.start()
        self._finalizer = weakref.finalize(self, _stop, self._words, self._wake, self._threads)

    def run(self, launches: np.ndarray) -> None:
        """Run one pass. `launches`: int64 [num_launches, LAUNCH_WORDS], addresses of memory that stays alive."""
        control = address(self._control)
        program.announce(control, address(launches), len(launches))
        # After the announcement: a worker that falls asleep looks at it once more after it cleared its event.
        for wake in self._wake:
            if not wake.is_set():
                wake.set()
        program.run_pass(control, 0, self.num_threads)

    def close(self) -> None:
        """End the workers. Harmless when called twice."""
        self._finalizer()


def _serve(control: np.ndarray, number: int, num_threads: int, wake: threading.Event) -> None:
    seen = 0
    while seen >= 0:
        wake.wait()
        seen = program.work(address(control), number, num_threads, seen, YIELDS_BEFORE_SLEEP)
        wake.clear()
        if int(control.view(np.int64)[sync.STEP // 8]) != seen:
            wake.set()


def _stop(words: np.ndarray, wakes: list[threading.Event], threads: list[threading.Thread]) -> None:
    words[sync.STEP // 8] = -1
    for wake in wakes:
        wake.set()
    for thread in threads:
        thread.join()
