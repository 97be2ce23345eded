"""The thread in which an engine steps for others: takes calls, tells what comes of them. Knows no event loop."""

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tspec.core.checks import need_process
from tspec.core.errors import ConfigError, TspecError
from tspec.core.sampling_params import SamplingParams
from tspec.requests.handle import Chunk, RequestHandle, Result
from tspec.requests.text_engine import TextEngine

_log = logging.getLogger("tspec")

News = Chunk | list[Result] | Exception
"""What a call gets: chunks, of which the last has the result; or all results at the end; or an error, after which
nothing comes."""


class Inbox(Protocol):
    """Where the news of a call go. Called in the engine's thread."""

    def put(self, news: News) -> None:
        """Keep news; who waits for them is woken a little later, together with others."""

    def is_open(self) -> bool:
        """Whether somebody may still look here; if not, the call is dropped."""


@dataclass(slots=True, eq=False)
class Call:
    """A prompt for the engine's thread.

    samples      parameters of each sample; one if it is streamed
    is_streamed  whether chunks are wanted, or the results alone
    is_done      whether nothing more comes of it
    """

    token_ids: list[int]
    samples: list[SamplingParams]
    priority: int
    is_streamed: bool
    inbox: Inbox
    handles: list[RequestHandle] = field(default_factory=list)
    num_running: int = 0
    is_done: bool = False


class EngineThread:
    """Steps an engine while it has work, and carries out between two steps what was asked for meanwhile.

    wake   called in its thread with inboxes that have news: once for all of a step, since who is woken competes with
           this thread for the interpreter

    `submit`, `drop` and `stop` may be called in any thread.
    """

    def __init__(self, name: str, engine: TextEngine, wake: Callable[[Sequence[Inbox]], None]) -> None:
        self._name = name
        self._engine = engine
        self._wake = wake
        self._news_for: list[Inbox] = []
        self._pid = os.getpid()
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._calls: dict[RequestHandle, Call] = {}
        self._open: set[Call] = set()  # those that will still be told something
        self._lock = threading.Lock()  # of _open and _has_ended together
        self._has_ended = False
        self._cause: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="tspec-engine", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what a new call would raise.

        Errors   ConfigError after `stop` and in a forked process; TspecError if the thread has died
        """
        need_process(self._name, self._pid)
        if self._has_ended:
            raise self._why_ended()

    def submit(self, call: Call) -> None:
        """Add a call: it gets the results or an error in any case, unless it is dropped. Errors: those of `check`."""
        self.check()
        with self._lock:
            if self._has_ended:
                raise self._why_ended()
            self._open.add(call)
        self._asked.put(lambda: self._add(call))

    def drop(self, call: Call) -> None:
        """Free what a call holds, before the next step, and tell it nothing more. Harmless for one that is done."""
        if not call.is_done:
            self._asked.put(lambda: self._end(call))

    def stop(self) -> None:
        """End the thread after the step in which it is, and close the engine. Harmless when called twice."""
        if os.getpid() != self._pid:
            return
        self._asked.put(None)
        if threading.current_thread() is not self._thread:  # which may have found its owner to be garbage
            self._thread.join()

    def _serve(self) -> None:
        try:
            while self._obey():
                for handle in self._engine.step():
                    self._tell(handle)
                self._wake_all()
        except BaseException as error:  # nothing steps any more, and those who wait have to know
            _log.exception("The engine's thread ends.")
            self._cause = error
        with self._lock:
            self._has_ended = True
        for call in self._open:
            self._send(call, self._why_ended())
            call.is_done = True
        self._open.clear()
        self._calls.clear()
        self._wake_all()
        self._engine.close()

    def _obey(self) -> bool:
        """Do what was asked for; wait for it while there is nothing to decode. Returns whether to go on.

        Not what is asked for meanwhile, so that a flood of calls does not keep others from their tokens.
        """
        commands = [] if self._engine.has_work else [self._asked.get()]
        commands += [self._asked.get() for _ in range(self._asked.qsize())]
        for command in commands:
            if command is None:
                return False
            command()
        self._wake_all()
        return True

    def _add(self, call: Call) -> None:
        try:
            call.handles = self._engine.add(call.token_ids, call.samples, call.priority)
        except Exception as error:  # a constraint is the caller's code, too, and may raise what it likes
            self._send(call, error)
            self._end(call)
            return
        call.num_running = len(call.handles)
        for handle in call.handles:
            self._calls[handle] = call
        for handle in call.handles:
            if handle.is_finished:  # asked for no tokens
                self._tell(handle)

    def _tell(self, handle: RequestHandle) -> None:
        """Tell a call what came of one of its samples."""
        call = self._calls.get(handle)
        if call is None:  # ended with another sample in the same step
            return
        call.num_running -= handle.is_finished
        try:
            if not call.inbox.is_open():
                call.is_done = True
            elif call.is_streamed:
                self._send(call, handle.take())
            elif call.num_running == 0:
                self._send(call, [each.finished_result() for each in call.handles])
        except Exception as error:  # of its tokenizer: nothing of the others'
            self._send(call, error)
            call.is_done = True
        if call.is_done or call.num_running == 0:
            self._end(call)

    def _send(self, call: Call, news: News) -> None:
        if not call.is_done:
            call.inbox.put(news)
            self._news_for.append(call.inbox)

    def _wake_all(self) -> None:
        if self._news_for:
            self._wake(self._news_for)
            self._news_for = []

    def _end(self, call: Call) -> None:
        """Forget a call, and free what it still holds."""
        call.is_done = True
        self._engine.abort(call.handles)
        for handle in call.handles:
            self._calls.pop(handle, None)
        with self._lock:
            self._open.discard(call)

    def _why_ended(self) -> TspecError:
        """A new exception for each who is told: a traceback grows wherever one is raised."""
        if self._cause is None:
            return ConfigError(self._name, got="closed", need="an open one", fix=f"Make a new {self._name}.")
        error = TspecError(
            f"{self._name}'s thread",
            got=f"{type(self._cause).__name__}: {self._cause}",
            need="no exception outside the requests",
            fix=f"Make a new {self._name}.",
        )
        error.__cause__ = self._cause
        return error
