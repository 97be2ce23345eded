"""Stop strings, looked for in a text as it grows. Knows characters only, no tokens."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A stop string, and the characters from `start` to `end` of the text that are it."""

    stop: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Tables:
    """A trie of the stop strings; node 0 is the root, and a node stands for the characters on the way to it.

    children   character -> node
    fallback   the longest other node that the characters end with
    held       characters at the end that some stop string begins with, and goes on after
    found      the longest stop string that the characters end with
    """

    children: tuple[dict[str, int], ...]
    fallback: tuple[int, ...]
    held: tuple[int, ...]
    found: tuple[str | None, ...]


class StopMatcher:
    """Finds where a text first ends with a stop string, and says how much of its end may become one.

    Of several stop strings the one that is complete first counts, whatever their order; of those complete at the
    same character the longest, so that no piece of one is left before the cut.

    length    characters of the text so far
    ignored   matches that end within this many characters of the text do not count

    Cost     a few dictionary look-ups a character, whatever the number of stop strings
    Source   Aho and Corasick, Efficient string matching, 1975
    """

    __slots__ = ("_node", "_tables", "ignored", "length")

    def __init__(self, stops: Sequence[str], ignored: int = 0) -> None:
        self._tables = _build(tuple(stops))
        self._node = 0
        self.length = 0
        self.ignored = ignored

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop string."""
        return self._tables.held[self._node]

    def push(self, text: str) -> StopMatch | None:
        """Add text; returns the first match, after which nothing more may be added."""
        children, fallback, found = self._tables.children, self._tables.fallback, self._tables.found
        node = self._node
        for offset, character in enumerate(text, 1):
            while node and character not in children[node]:
                node = fallback[node]
            node = children[node].get(character, 0)
            stop = found[node]
            end = self.length + offset
            if stop is not None and end > self.ignored:
                return StopMatch(stop, end - len(stop), end)
        self._node = node
        self.length += len(text)
        return None

    def fork(self) -> "StopMatcher":
        """Return another one at the same place, for text that may not come."""
        other = StopMatcher.__new__(StopMatcher)
        other._tables, other._node, other.length = self._tables, self._node, self.length
        other.ignored = self.ignored
        return other


@lru_cache(maxsize=64)
def _build(stops: tuple[str, ...]) -> _Tables:
    children: list[dict[str, int]] = [{}]
    depth, fallback = [0], [0]
    found: list[str | None] = [None]
    for stop in stops:
        node = 0
        for character in stop:
            if character not in children[node]:
                children[node][character] = len(children)
                children.append({})
                depth.append(depth[node] + 1)
                fallback.append(0)
                found.append(None)
            node = children[node][character]
        found[node] = stop
    held = [0] * len(children)
    waiting = deque([0])
    while waiting:  # in the order of depth: fallbacks are shorter, and so have been seen
        node = waiting.popleft()
        held[node] = depth[node] if children[node] else held[fallback[node]]
        found[node] = found[node] or found[fallback[node]]
        for character, child in children[node].items():
            waiting.append(child)
            if node:
                back = fallback[node]
                while back and character not in children[back]:
                    back = fallback[back]
                fallback[child] = children[back].get(character, 0)
    return _Tables(tuple(children), tuple(fallback), tuple(held), tuple(found))
