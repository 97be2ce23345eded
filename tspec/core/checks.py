"""Checks of what users pass in: each raises ConfigError that names the parameter and its range."""

import math
import os
from collections.abc import Sequence

from tspec.core.errors import ConfigError


def need_number(
    what: str, value: object, *, low: float = -math.inf, high: float = math.inf, is_open: bool = False
) -> None:
    """Need a finite number from `low` to `high`; `is_open`: above `low`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and (low < value if is_open else low <= value) and value <= high:  # type: ignore[operator]
        return
    if high == math.inf:
        need = "a number" if low == -math.inf else f"a number {'above' if is_open else 'of at least'} {low:g}"
    else:
        need = (
            f"a number {'above' if is_open else 'from'} {low:g} {'and at most' if is_open else 'to'} {high:g}"
        )
    raise ConfigError(what, got=repr(value), need=need, fix="Change the value.")


def need_int(what: str, value: object, *, low: int, high: int | None = None) -> None:
    """Need an integer of at least `low`, and at most `high`."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < low or (high is not None and value > high):  # type: ignore[operator]
        need = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
        raise ConfigError(what, got=repr(value), need=need, fix="Change the value.")


def need_choice(what: str, value: object, choices: Sequence[str]) -> None:
    """Need one of `choices`."""
    if value not in choices:
        raise ConfigError(what, got=repr(value), need=f"one of {', '.join(choices)}", fix="Pick one of them.")


def need_process(what: str, pid: int) -> None:
    """Need the process `pid`, in which `what` was made: a forked one has its memory, but not its threads."""
    if os.getpid() != pid:
        raise ConfigError(
            what,
            got="a process forked from the one that made it",
            need="that one",
            fix="Make a new one here, or start processes with the method spawn.",
        )
