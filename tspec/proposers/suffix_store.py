"""Texts whose runs of tokens are counted: one request's own, and the responses of all requests before."""

from collections import OrderedDict

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
    """

    def __init__(self, prompt: np.ndarray) -> None:
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

    Room is made by forgetting whole responses, the one first that was learned or used longest ago. The stamp of a run
    is the number of the response that said it last.

    Memory   BYTES_PER_TOKEN * max_tokens for the counts, set aside by the system as they are first needed; and the
             responses themselves
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._responses: OrderedDict[int, np.ndarray] = OrderedDict()
        self._next_number = 0
        self.num_tokens = 0
        self.nodes, self.table, self._state = make_arrays(max_tokens)

    @property
    def responses(self) -> list[np.ndarray]:
        """Those held, int32 [n] each, the next to be forgotten first."""
        return list(self._responses.values())

    @property
    def num_bytes(self) -> int:
        """Memory of the counts and of the responses' tokens."""
        return self.nodes.nbytes + self.table.nbytes + 4 * self.num_tokens

    def learn(self, tokens: np.ndarray) -> None:
        """Add a response, int32 [n]: its first `max_tokens`. One of a single token says nothing, and is left out."""
        response = np.array(tokens[: self._max_tokens], dtype=np.int32)
        if len(response) < 2:
            return
        while self.num_tokens + len(response) > self._max_tokens:
            self._forget()
        number, self._next_number = self._next_number, self._next_number + 1
        append_tokens(self.nodes, self.table, self._state, response, ROOT, number, 0)
        self._responses[number] = response
        self.num_tokens += len(response)

    def use(self, number: int) -> None:
        """Count a response as used now, if it is still held."""
        if number in self._responses:
            self._responses.move_to_end(number)

    def _forget(self) -> None:
        _, response = self._responses.popitem(last=False)
        remove_tokens(self.nodes, self.table, self._state, response)
        self.num_tokens -= len(response)
