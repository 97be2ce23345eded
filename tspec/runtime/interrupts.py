"""Ctrl-C between steps: never inside one, where the books of the engine would be left half written."""

import signal
import threading
from collections.abc import Callable
from typing import Any

Handler = Callable[[int, Any], Any]


class HeldInterrupts:
    """Lets a Ctrl-C that comes in the block take effect at its end, or where the block asks; a second one at once.

    Does nothing outside the main thread, which alone gets signals, and where Python does not handle them.
    """

    def __init__(self) -> None:
        self._handler: Handler | None = None
        self._held: tuple[int, Any] | None = None

    def __enter__(self) -> "HeldInterrupts":
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler = handler
            signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self.let_through()

    def let_through(self) -> None:
        """Let the Ctrl-C that came take effect now: with Python's own handler, raise KeyboardInterrupt."""
        held, self._held = self._held, None
        if held is not None and self._handler is not None:
            self._handler(*held)

    def _hold(self, number: int, frame: Any) -> None:
        is_second = self._held is not None
        self._held = number, frame
        if is_second:
            self.let_through()
