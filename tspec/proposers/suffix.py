"""The suffix proposer: what most often followed the end of a text, in the text itself and in earlier responses.

Needs no model. Responses alone are shared between requests, never prompts: a request's candidates may show what the
target said to others, never what others said. A candidate is emitted only where the target says it, too.
"""

import numpy as np

from tspec.core.proposer import Committed, DraftBatch
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import NO_PARENT, CandidateTrees
from tspec.proposers.lookup_priors import SUFFIX_PRIORS
from tspec.proposers.suffix_growth import MAX_OFFERS_PER_NODE, NUM_POPULATIONS, OFFER, grow_tree
from tspec.proposers.suffix_store import OwnText, ResponseStore
from tspec.proposers.suffix_trie import DEPTH

MAX_RESPONSE_TOKENS = 131_072
"""Tokens of earlier responses that are kept. Their counts take at most 63 MiB."""

CATCH_UP_TOKENS = 4
"""Tokens of waiting responses that a round counts besides as many as it committed: more than come, so all get done."""


class SuffixProposer:
    """Proposes a tree: continuations of the longest ends of a text that came before, the likeliest first.

    Counts over two populations: the request's own prompt and output, and the responses of requests that were released
    before, of which whole ones are forgotten when there are more than `max_response_tokens`. How likely a candidate is
    depends on how long a match it continues and how often it followed that (`priors`), times the same for all before
    it. Where a path goes on beyond what came before, shorter matches continue it.

    A tree has at most `max_candidates` candidates, and at most three for each token of the longest match, of
    which DEPTH at most are looked at.

    Cost     O(DEPTH) a committed token and a candidate, whatever the length of the texts; one native call a row in
             `propose`, one in `observe`, and one or two for the responses that wait: a few tokens a round
    Memory   500 bytes a token of capacity of each request, and a token of the responses
    """

    name = "suffix"

    def __init__(
        self,
        config: SpeculativeConfig,
        *,
        max_candidates: int,
        max_response_tokens: int = MAX_RESPONSE_TOKENS,
    ) -> None:
        self.priors = SUFFIX_PRIORS
        self._config = config
        self._max_candidates = max_candidates
        self._texts: dict[int, OwnText] = {}
        self.store = ResponseStore(max_response_tokens)
        width = max_candidates + 1
        self._scratch = (
            np.zeros(MAX_OFFERS_PER_NODE * width, dtype=OFFER),
            np.zeros((width, NUM_POPULATIONS), dtype=np.int32),
            np.zeros(width, dtype=np.float64),
        )

    @property
    def num_texts(self) -> int:
        """Sequences that it holds memory for."""
        return len(self._texts)

    def warm_up(self) -> None:
        """Compile or load every native function, so that no request waits for it."""
        spare = SuffixProposer(self._config, max_candidates=1, max_response_tokens=2)
        one = np.ones(1, dtype=np.int32)
        spare.admit(0, one)
        spare.propose(DraftBatch(slots=one - 1, roots=one, max_nodes=one))
        for _ in range(2):
            spare.learn(np.ones(2, dtype=np.int32))

    def learn(self, response: np.ndarray) -> None:
        """Take in a response, int32 [n], as if a request had ended with it: such as texts of a corpus at the start."""
        self.store.learn(response)
        self.store.catch_up(self.store.num_waiting)

    def admit(self, slot: int, prompt: np.ndarray) -> None:
        """Start a sequence: `prompt` int32 [n] are its committed tokens so far. A slot in use is released before."""
        self.release(slot)
        self._texts[slot] = OwnText(np.ascontiguousarray(prompt, dtype=np.int32))

    def propose(self, batch: DraftBatch) -> CandidateTrees:
        """Return one tree a row, with its evidence; the arrays are new ones, `max_candidates` + 1 wide.

        A row of a slot that was never admitted gets its root alone.
        """
        shape = (len(batch.slots), self._max_candidates + 1)
        tokens, parents, evidence = np.zeros((3, *shape), dtype=np.int32)
        num_nodes = np.ones(shape[0], dtype=np.int32)
        tokens[:, 0] = batch.roots
        parents[:] = NO_PARENT
        rows = zip(batch.slots.tolist(), batch.roots.tolist(), batch.max_nodes.tolist(), strict=True)
        for row, (slot, root, max_nodes) in enumerate(rows):
            text = self._texts.get(slot)
            if text is not None and text.length > 0 and max_nodes > 1:
                assert text.tokens[-1] == root, f"row {row}: root {root} does not end slot {slot}"
                text.was_asked = True
                limit = min(self._max_candidates, max_nodes - 1)
                num_nodes[row] = self._grow(tokens[row], parents[row], evidence[row], text, limit)
        return CandidateTrees(tokens, parents, num_nodes, evidence=evidence)

    def observe(self, committed: Committed) -> None:
        """Append what was committed, count some of the responses that wait. Slots released meanwhile are ignored."""
        for row, (slot, count) in enumerate(
            zip(committed.slots.tolist(), committed.counts.tolist(), strict=True)
        ):
            if slot in self._texts:
                self._texts[slot].append(committed.tokens[row, :count])
        self.store.catch_up(CATCH_UP_TOKENS + int(committed.counts.sum()))

    def release(self, slot: int) -> None:
        """Forget a sequence. Its response, what came after the prompt, is counted in the next rounds.

        That of a sequence which never had room for candidates is not: it took no part in speculation. Unknown slots are
        ignored.
        """
        text = self._texts.pop(slot, None)
        if text is not None and text.was_asked:
            self.store.learn(text.response)

    def _grow(
        self, tokens: np.ndarray, parents: np.ndarray, evidence: np.ndarray, text: OwnText, limit: int
    ) -> int:
        num_nodes, used = grow_tree(
            tokens,
            parents,
            evidence,
            (text.nodes, text.table),
            text.newest,
            text.length,
            (self.store.nodes, self.store.table),
            text.tokens[-DEPTH:],
            limit,
            self.priors,
            *self._scratch,
        )
        self.store.use(used)
        return int(num_nodes)
