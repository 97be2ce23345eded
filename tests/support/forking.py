"""What a function does in a forked process."""

import os
import select
import signal
from collections.abc import Callable

SECONDS = 30


def in_forked_process(function: Callable[[], object]) -> str:
    """Run `function` in a forked copy of this process; returns its result as text, or what it raised.

    The process ends at once, without what Python does at its exit, and fails the test where it hangs.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            message = str(function())
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(writing, message.encode()[:4096])
        os._exit(0)
    os.close(writing)
    is_readable, _, _ = select.select([reading], [], [], SECONDS)
    if not is_readable:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    message = os.read(reading, 4096).decode()
    os.close(reading)
    assert is_readable, f"the forked process did nothing for {SECONDS} seconds"
    return message
