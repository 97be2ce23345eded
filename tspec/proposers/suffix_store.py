"""Texts whose runs of tokens are counted: one request's own, and the responses of all requests before."""

from collections import OrderedDict, deque

import numpy as np

from tspec.proposers.suffix_trie import (
    ENTRIES_PER_TOKEN,
    NODE,
    NODES_PER_TOKEN,
    ROOT,
    append_tokens,
    make_arrays,
    remove_tokens,
)

MIN_CAPACITY_TOKENS = 256
"""Room of the shortest text. Texts start with twice the room of their prompt, and double when full."""

BYTES_PER_TOKEN = NODES_PER_TOKEN * NODE.itemsize + ENTRIES_PER_TOKEN * 4
"""Memory of the counts of one token at most."""


class OwnText:
    """One request's text so far, and its counts; the stamp of a run is where it ended last.

    tokens   int32 [length]; the first `num_prompt` were there when the request was admitted
    newest   the longest run at its end
    was_asked   whether candidates were ever asked for
    """

    def __init__(self, prompt: np.ndarray) -> None:
        self.was_asked = False
        self.num_prompt = len(prompt)
        self.length = 0
        self._make_room(2 * len(prompt))
        self.append(prompt)

    @property
    def tokens(self) -> np.ndarray:
        """The text, as a view."""
        return self._tokens[: self.length]

    @property
    def response(self) -> np.ndarray:
        """What came after the prompt, as a view."""
        return self._tokens[self.num_prompt : self.length]

    def append(self, tokens: np.ndarray) -> None:
        """Add `tokens` int32 [n]."""
        end = self.length + len(tokens)
        if end > len(self._tokens):
            text = self.tokens.copy()
            self._make_room(2 * end)
            self._count(text)
        self._count(tokens)

    def _make_room(self, num_tokens: int) -> None:
        capacity = max(MIN_CAPACITY_TOKENS, num_tokens)
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self.nodes, self.table, self._state = make_arrays(capacity)
        self.newest, self.length = ROOT, 0

    def _count(self, tokens: np.ndarray) -> None:
        end = self.length + len(tokens)
        self._tokens[self.length : end] = tokens
        arrays = (self.nodes, self.table, self._state)
        self.newest = append_tokens(*arrays, self._tokens[self.length : end], self.newest, self.length + 1, 1)
        self.length = end


class ResponseStore:
    """Counts over the newest and the most used responses, at most `max_tokens` of them in all.

    Responses that are learned wait: they are counted bit by bit (`catch_up`), so that no round pays for a whole one.
    Room is made by forgetting whole responses, bit by bit as well, the one first that was counted or used longest ago.
    What is counted of a response that comes or goes is a text like any other. The stamp of a run is the number of the
    response that said it last.

    Memory   BYTES_PER_TOKEN * max_tokens for the counts, set aside by the system as they are first needed; and the
             responses themselves, those that wait at most `max_tokens` as well
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._waiting: deque[np.ndarray] = deque()
        self._coming = np.zeros(0, dtype=np.int32)
        self._num_counted, self._newest = 0, ROOT  # of the one that comes
        self._responses: OrderedDict[int, np.ndarray] = OrderedDict()
        self._going = np.zeros(0, dtype=np.int32)
        self._next_number = 0
        self.num_tokens = 0
        self.nodes, self.table, self._state = make_arrays(max_tokens)

    @property
    def responses(self) -> list[np.ndarray]:
        """Those that are counted whole, int32 [n] each, the next to be forgotten first."""
        return list(self._responses.values())

    @property
    def num_waiting(self) -> int:
        """Tokens of responses that are not counted yet."""
        return sum(map(len, self._waiting)) + len(self._coming) - self._num_counted

    @property
    def num_bytes(self) -> int:
        """Memory of the counts and of the responses' tokens."""
        return self.nodes.nbytes + self.table.nbytes + 4 * (self.num_tokens + self.num_waiting)

    def learn(self, tokens: np.ndarray) -> None:
        """Let a response wait, int32 [n]: its first `max_tokens`. One of a single token says nothing, and is left out.

        Where too many wait, those that have waited longest are left out.
        """
        response = np.array(tokens[: self._max_tokens], dtype=np.int32)
        if len(response) < 2:
            return
        self._waiting.append(response)
        while sum(map(len, self._waiting)) > self._max_tokens:
            self._waiting.popleft()

    def catch_up(self, num_tokens: int) -> None:
        """Count at most `num_tokens` of what waits, and forget as many where there is no room."""
        while num_tokens > 0 and (len(self._coming) > 0 or self._waiting):
            if len(self._coming) == 0:
                self._coming = self._waiting.popleft()
            part = self._coming[self._num_counted : self._num_counted + num_tokens]
            self._forget(self.num_tokens + len(part) - self._max_tokens)
            arrays = (self.nodes, self.table, self._state)
            self._newest = append_tokens(*arrays, part, self._newest, self._next_number, 0)
            self._num_counted += len(part)
            self.num_tokens += len(part)
            num_tokens -= len(part)
            if self._num_counted == len(self._coming):
                self._responses[self._next_number] = self._coming
                self._next_number += 1
                self._coming, self._num_counted, self._newest = np.zeros(0, dtype=np.int32), 0, ROOT

    def use(self, number: int) -> None:
        """Count a response as used now, if it is still held whole."""
        if number in self._responses:
            self._responses.move_to_end(number)

    def _forget(self, num_tokens: int) -> None:
        while num_tokens > 0:
            if len(self._going) == 0:
                _, self._going = self._responses.popitem(last=False)
            count = min(num_tokens, len(self._going))
            remove_tokens(self.nodes, self.table, self._state, self._going, count)
            self._going = self._going[count:]
            self.num_tokens -= count
            num_tokens -= count
