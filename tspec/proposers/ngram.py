"""The n-gram proposer: what followed the last tokens when they occurred before, prompt and output alike.

Needs no model. Looks into a sequence's own text only, never into other sequences.
"""

import numpy as np

from tspec.core.proposer import Committed, DraftBatch
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import CandidateTrees
from tspec.proposers.lookup_priors import NGRAM_PRIORS
from tspec.proposers.ngram_index import CURSOR, ENTRIES, append_rows, propose_rows
from tspec.proposers.regions import Regions

MIN_CAPACITY_TOKENS = 1024
"""Room of the shortest text. Texts start with twice the room of their prompt, and double when full."""


class NgramProposer:
    """Proposes a chain: the continuation of the longest suffix of a text that occurs earlier in it.

    The longest suffix of `prompt_lookup_min` to `prompt_lookup_max` tokens wins; of its earlier occurrences,
    which may overlap it, the one that `occurrence` asks for. A continuation that reaches the end of the text
    repeats, as periodic text does. Without a match there is only the root.

    A chain has at most `num_speculative_tokens` candidates, and with `grows_with_match` at most 2n - 1 after
    a match of n tokens: a short match is right less often, and refused candidates cost as much as good ones.

    Cost     O(prompt_lookup_max) a committed token; one native call a round in `propose`, one in `observe`
    Memory   4 + 8 * (prompt_lookup_max - prompt_lookup_min + 1) bytes a token of capacity
    """

    name = "ngram"

    def __init__(self, config: SpeculativeConfig, *, grows_with_match: bool = True) -> None:
        assert config.num_speculative_tokens is not None, "build decides how many where the user did not"
        self.priors = NGRAM_PRIORS
        self._config = config
        self._max_candidates = config.num_speculative_tokens
        self._grows_with_match = grows_with_match
        self._min_match = config.prompt_lookup_min
        self._max_match = config.prompt_lookup_max
        self._keeps_latest = config.occurrence == "latest"
        self._max_per_match = self._most_candidates()
        self._table_scale = ENTRIES * (self._max_match - self._min_match + 1)
        self._regions = Regions()
        self._text = np.zeros(0, dtype=np.int32)
        self._table = np.zeros(0, dtype=np.int32)
        self._cursors = np.zeros(0, dtype=CURSOR)

    @property
    def num_texts(self) -> int:
        """Sequences that it holds memory for."""
        return int(np.count_nonzero(self._cursors["capacity"]))

    def warm_up(self) -> None:
        """Compile or load every native function, so that no request waits for it."""
        spare = NgramProposer(self._config)
        one = np.ones(1, dtype=np.int32)
        spare.admit(0, one)
        spare.propose(DraftBatch(slots=one - 1, roots=one, max_nodes=one))
        spare.observe(Committed(slots=one - 1, tokens=one[None], counts=one, num_accepted=one - 1))

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start a sequence: `prompt` int32 [n] are its committed tokens so far. A slot in use starts over."""
        self.release(slot)
        if slot >= len(self._cursors):
            self._cursors = _lengthened(self._cursors, slot + 1)
        self._start_text(slot, np.array(prompt, dtype=np.int32), room=2 * len(prompt))

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """Return one chain a row, with its evidence; the arrays are new ones, `num_speculative_tokens` + 1 wide.

        A row of a slot that was never admitted gets its root alone.
        """
        rows, width = len(batch.slots), self._max_candidates + 1
        tokens, parents, evidence = np.empty((3, rows, width), dtype=np.int32)
        num_nodes = np.empty(rows, dtype=np.int32)
        stray = propose_rows(
            tokens,
            parents,
            evidence,
            num_nodes,
            self._text,
            self._cursors,
            _int32(batch.slots),
            _int32(batch.roots),
            _int32(batch.max_nodes),
            self._max_per_match,
        )
        assert stray < 0, f"row {stray}: root {batch.roots[stray]} does not end slot {batch.slots[stray]}"
        return CandidateTrees(tokens, parents, num_nodes, evidence=evidence)

    def observe(self, committed: Committed) -> None:
        """Append what was committed; slots that are released meanwhile are ignored."""
        slots, tokens, counts = _int32(committed.slots), _int32(committed.tokens), _int32(committed.counts)
        row = self._append(slots, tokens, counts, 0)
        while row < len(slots):
            slot = int(slots[row])
            start, length = int(self._cursors[slot]["start"]), int(self._cursors[slot]["length"])
            text = self._text[start : start + length].copy()
            self.release(slot)
            self._start_text(slot, text, room=2 * (length + int(counts[row])))
            row = self._append(slots, tokens, counts, row)

    def release(self, slot: int) -> None:
        """Forget a sequence and free its memory. Unknown slots are ignored."""
        if 0 <= slot < len(self._cursors) and self._cursors[slot]["capacity"] > 0:
            cursor = self._cursors[slot]
            self._regions.give_back(int(cursor["start"]), int(cursor["capacity"]))
            self._cursors[slot] = np.zeros((), dtype=CURSOR)

    def _start_text(self, slot: int, tokens: np.ndarray, room: int) -> None:
        """Give an unused slot at least `room` tokens of memory, and `tokens` as its text."""
        capacity = MIN_CAPACITY_TOKENS
        while capacity < room:
            capacity *= 2
        start = self._regions.take(capacity)
        if self._regions.end > len(self._text):
            self._text = _lengthened(self._text, self._regions.end)
            self._table = _lengthened(self._table, len(self._text) * self._table_scale)
        self._table[start * self._table_scale : (start + capacity) * self._table_scale] = 0
        self._cursors[slot] = (start, capacity, 0, 0, 0)
        slots, counts = np.array([slot], dtype=np.int32), np.array([len(tokens)], dtype=np.int32)
        self._append(slots, tokens[None], counts, 0)

    def _append(self, slots: np.ndarray, tokens: np.ndarray, counts: np.ndarray, first_row: int) -> int:
        state = (self._text, self._table, self._cursors)
        lookup = (self._min_match, self._max_match, self._keeps_latest)
        return int(append_rows(*state, slots, tokens, counts, first_row, *lookup))

    def _most_candidates(self) -> np.ndarray:
        """Return int64 [max_match + 1]: the most candidates after a match of 0, 1, … tokens."""
        limit = self._max_candidates
        matches = range(1, self._max_match + 1)
        most = [min(limit, 2 * match - 1) if self._grows_with_match else limit for match in matches]
        return np.array([0, *most], dtype=np.int64)


def _lengthened(array: np.ndarray, least: int) -> np.ndarray:
    """Return a copy at least twice as long, and at least `least` long, with zeros behind."""
    longer = np.zeros(max(least, 2 * len(array)), dtype=array.dtype)
    longer[: len(array)] = array
    return longer


def _int32(array: np.ndarray) -> np.ndarray:
    """Return what the native functions are compiled for; usually `array` itself."""
    return np.ascontiguousarray(array, dtype=np.int32)
