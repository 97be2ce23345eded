"""Rounds of speculation that are played through on texts which are known: what they give, and what they would take.

A text is the same however it is decoded, so candidates can be judged without a pass. A lookup is asked as the engine
would ask it; of a model, what it said at each place of a text was recorded (`record.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.texts import Text
from tspec.core.pass_costs import PassCosts
from tspec.core.proposer import Committed, DraftBatch, Proposer
from tspec.core.tree import CandidateTrees


@dataclass(slots=True)
class Played:
    """Sums over rounds.

    hits     float64 [depths, ranks]: rounds whose candidate of this depth and rank among its siblings was right
    reached  float64 [depths]: rounds in which all before this depth were right
    """

    num_rounds: int = 0
    num_tokens: int = 0
    num_candidates: int = 0
    plain_s: float = 0.0
    verify_s: float = 0.0
    draft_s: float = 0.0
    hits: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    reached: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def tokens_per_pass(self) -> float:
        """Accepted candidates and bonus tokens a round."""
        return self.num_tokens / self.num_rounds

    @property
    def speed_up(self) -> float:
        """Over plain decoding, as far as passes and proposing go."""
        return self.plain_s / (self.verify_s + self.draft_s)

    @property
    def num_depths(self) -> int:
        """Depths at which a candidate was ever right."""
        return int((self.hits.sum(axis=1) > 0).sum())

    @property
    def chances(self) -> np.ndarray:
        """float64 [depths, ranks]: how often a candidate is right where all before it are."""
        return self.hits / np.maximum(self.reached, 1)[:, None]


MAX_DEPTH, MAX_RANKS = 16, 8
"""Depths and siblings that are told apart."""


class Game:
    """Plays rounds, and adds them up. `costs` say what passes take."""

    def __init__(self, costs: PassCosts) -> None:
        self._node_s, self._context_s = costs.by_nodes(128), costs.by_context()
        self.played = Played(hits=np.zeros((MAX_DEPTH, MAX_RANKS)), reached=np.zeros(MAX_DEPTH))

    def pass_s(self, num_nodes: int, context: int) -> float:
        """Seconds of a verify pass of one sequence."""
        return float(self._node_s[num_nodes] + context * self._context_s[num_nodes])

    def round(
        self, parents: Sequence[int], path: Sequence[int], context: int, left: int, draft_s: float
    ) -> int:
        """Count a round, and return the tokens that it gave.

        path   nodes of the tree that are right, from depth 1 on
        left   tokens that the text still has; a round may promise more
        """
        played, accepted = self.played, min(len(path), left - 1)
        tokens = accepted + 1
        played.num_rounds += 1
        played.num_tokens += tokens
        played.num_candidates += len(parents) - 1
        played.plain_s += sum(self.pass_s(1, context + place) for place in range(tokens))
        played.verify_s += self.pass_s(len(parents), context)
        played.draft_s += draft_s
        for depth in range(min(len(path) + 1, MAX_DEPTH, left)):
            played.reached[depth] += 1
            if depth < len(path):
                rank = parents[1 : path[depth]].count(parents[path[depth]])
                played.hits[depth, min(rank, MAX_RANKS - 1)] += 1
        return tokens


def right_path(tokens: Sequence[int], parents: Sequence[int], after: Sequence[int]) -> list[int]:
    """Nodes of a tree that say what comes, from depth 1 on."""
    path, above = [], 0
    for token in after:
        found = [
            node for node in range(above + 1, len(tokens)) if parents[node] == above and tokens[node] == token
        ]
        if not found:
            break
        path.append(found[0])
        above = found[0]
    return path


def play_proposer(
    proposer: Proposer,
    texts: Sequence[Text],
    costs: PassCosts,
    most_candidates: int,
    draft_s: float,
    judge: Callable[[CandidateTrees, list[int]], None] = lambda trees, path: None,
) -> Played:
    """Ask a proposer that needs no model in each round of each text, one after the other.

    draft_s  that asking takes
    judge    told each round's tree and its right nodes
    """
    game, slot = Game(costs), np.zeros(1, dtype=np.int32)
    for text in texts:
        known = [*text.prompt, text.output[0]]
        proposer.admit(0, np.array(text.prompt, dtype=np.int32))
        _tell(proposer, slot, [text.output[0]], 0.0)
        while len(known) < len(text.prompt) + len(text.output):
            after = text.output[len(known) - len(text.prompt) :]
            limit = np.array([1 + min(most_candidates, len(after) - 1)], dtype=np.int32)
            root, context = np.array([known[-1]], dtype=np.int32), np.array([len(known) - 1], dtype=np.int32)
            trees = proposer.propose(DraftBatch(slot, root, limit, contexts=context))
            count = int(trees.num_nodes[0])
            parents = trees.parents[0, :count].tolist()
            path = right_path(trees.tokens[0, :count].tolist(), parents, after)
            judge(trees, path)
            given = game.round(parents, path, len(known) - 1, len(after), draft_s)
            _tell(proposer, slot, after[:given], game.pass_s(count, len(known) - 1))
            known += after[:given]
        proposer.release(0)
    return game.played


def _tell(proposer: Proposer, slot: np.ndarray, tokens: Sequence[int], pass_s: float) -> None:
    count = np.array([len(tokens)], dtype=np.int32)
    proposer.observe(Committed(slot, np.array([tokens], dtype=np.int32), count, count - 1, pass_s))
