"""The threads of a pass: this one and workers that wait in native code, and sleep when no pass comes."""

import os
import threading
import weakref

import numpy as np

from tspec.core.checks import need_process
from tspec.core.errors import ConfigError
from tspec.kernels.cpu import program, sync
from tspec.runtime.memory import address, allocate

MAX_LAUNCHES = 1 << 14


class ThreadPool:
    """Runs bound programs on `num_threads` threads. One pass at a time; not to be shared between threads."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._pid = os.getpid()
        self._control = allocate(sync.FIRST_COUNTER + 8 * program.COUNTERS_A_LAUNCH * MAX_LAUNCHES)
        workers = [
            threading.Thread(
                target=_serve, args=(self._control, number, num_threads), name=f"tspec-{number}", daemon=True
            )
            for number in range(1, num_threads)
        ]
        for worker in workers:
            worker.start()
        words = self._control.view(np.int64)
        self._finalizer = weakref.finalize(self, _stop, words, workers, self._pid)

    def run(self, launches: np.ndarray) -> None:
        """Run one pass.

        launches    int64 [num_launches, LAUNCH_WORDS], addresses of memory that stays alive

        One native call, so that an interrupt comes before a pass or after it, never between its threads.
        Errors   ConfigError after `close` and in a forked process, where the pass would wait for workers for ever
        """
        if not self._finalizer.alive:
            raise ConfigError("threads", got="closed ones", need="open ones", fix="Build a new engine.")
        need_process("engine", self._pid)
        program.step(address(self._control), self.num_threads, address(launches), len(launches))

    def close(self) -> None:
        """End the workers. Harmless when called twice."""
        self._finalizer()


def _serve(control: np.ndarray, number: int, num_threads: int) -> None:
    program.work(address(control), number, num_threads)


def _stop(words: np.ndarray, workers: list[threading.Thread], pid: int) -> None:
    if os.getpid() != pid:  # a forked process has no workers to end
        return
    words[sync.STEP // 8] = -1
    for worker in workers:
        worker.join()
