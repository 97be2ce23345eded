"""How many candidates of a method pay: its best chain, and its best tree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.record import Recorded, play_recorded, record, rounds_of, time_first
from autotune.rounds import Played, play_proposer
from autotune.static_tree import StaticTree, best_trees
from autotune.texts import Text
from tspec.checkpoint.policy_file import config_hash
from tspec.core.pass_costs import PassCosts
from tspec.core.policy import MethodPolicy, RoundCosts
from tspec.core.proposer import RankedProposer
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.suffix import SuffixProposer
from tspec.requests.text_engine import TextEngine

TREE_WIDTH, TREE_DEPTH = 4, 4
"""Candidates of each node, and levels, of the trees that a model is asked for to see what its ranks are worth."""
PRIOR_WEIGHT = 32.0
"""Judged candidates that a class's shipped prior counts as: those are from many texts, a policy's from few."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found for a method.

    figures  for reports: the speed-up by candidates, acceptance by depth and rank, expected tokens of static trees
    priors   of the classes of evidence of its candidates, by the name of the proposer
    """

    policy: MethodPolicy
    figures: dict[str, Any]
    priors: dict[str, tuple[float, ...]] = field(default_factory=dict)


class Judged:
    """Counts right candidates of each class of evidence: all children of a node on the right path are judged."""

    def __init__(self, priors: np.ndarray) -> None:
        self._priors = np.asarray(priors, dtype=np.float64)
        self._counts = np.zeros((2, len(self._priors)))

    def tree(self, parents: Sequence[int], evidence: Sequence[int], path: Sequence[int]) -> None:
        """Count the candidates of one tree."""
        on_path = {0, *path}
        for node in range(1, len(parents)):
            if parents[node] in on_path:
                self._counts[:, evidence[node]] += (node in on_path, 1)

    def priors(self) -> tuple[float, ...]:
        """The chance of each class, as far as it was seen."""
        hits, trials = self._counts
        return tuple(((hits + PRIOR_WEIGHT * self._priors) / (trials + PRIOR_WEIGHT)).round(5).tolist())


def lookup_of(method: str, most_candidates: int) -> RankedProposer:
    """The lookup of a method, as an engine makes it for so many candidates."""
    config = SpeculativeConfig(method, num_speculative_tokens=most_candidates)
    lookup: RankedProposer = (
        SuffixProposer(config, max_candidates=most_candidates)
        if method == "suffix"
        else NgramProposer(config)
    )
    lookup.warm_up()
    return lookup


def search_lookup(method: str, texts: Sequence[Text], costs: PassCosts, most_candidates: int) -> Found:
    """Play the rounds of a lookup with every number of candidates."""
    draft_s = costs.ask_s / 2  # of two lookups together
    plays = {
        count: play_proposer(lookup_of(method, count), texts, costs, count, draft_s)
        for count in range(1, most_candidates + 1)
    }
    best = max(plays, key=lambda count: plays[count].speed_up)
    trees = best_trees(plays[most_candidates].chances, most_candidates + 1)
    tree = trees[best] if method == "suffix" else _chain(best, plays[best])
    policy = MethodPolicy(best, None, 1, tree.parents, plays[best].speed_up)
    return Found(policy, _figures(plays, trees, plays[most_candidates], draft_s))


def lookup_priors(
    lookups: Sequence[RankedProposer], texts: Sequence[Text], costs: PassCosts, most_candidates: int
) -> dict[str, tuple[float, ...]]:
    """What the candidates of a union's lookups turn out to be, class by class."""
    found = {}
    for lookup in lookups:
        judged = Judged(lookup.priors)

        def judge(trees: CandidateTrees, path: list[int], judged: Judged = judged) -> None:
            count = int(trees.num_nodes[0])
            assert trees.evidence is not None, "a RankedProposer gives it"
            judged.tree(trees.parents[0, :count].tolist(), trees.evidence[0, :count].tolist(), path)

        play_proposer(lookup, texts, costs, most_candidates, 0.0, judge)
        found[lookup.name] = judged.priors()
    return found


@dataclass(frozen=True, slots=True)
class Search:
    """What the search for a model's settings needs.

    open             an engine for a configuration; the search closes it
    prompts          token ids
    most_candidates  that an engine verifies of one sequence
    """

    open: Callable[[SpeculativeConfig], TextEngine]
    prompts: Sequence[Sequence[int]]
    costs: PassCosts
    most_candidates: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class _Shape:
    """A tree that a model grows, in rounds of `depth` levels, with what playing its rounds gave."""

    tree: StaticTree
    depth: int
    played: Played
    costs: RoundCosts


def search_model(asked: SpeculativeConfig, search: Search) -> Found:
    """Find the best chain and the best tree of a model, and take the better one. Errors: those of an engine"""
    most = search.most_candidates
    alone = replace(asked, draft_top_k=1, draft_depth=None, num_speculative_tokens=most)
    recorded, costs, priors = _record(search, alone, most)
    plays = {count: play_recorded(recorded, search.costs, costs, count) for count in range(1, most + 1)}
    best = max(plays, key=lambda count: plays[count].speed_up)
    kept = _Shape(_chain(best, plays[best]), best, plays[best], costs)
    widest, trees = plays[most], list[StaticTree]()
    if asked.draft_sample_method == "greedy":  # others draw chains alone
        widest, trees, promising = _search_trees(asked, search)
        if promising is not None and promising.played.speed_up > kept.played.speed_up:
            kept = promising
    policy = MethodPolicy(
        num_candidates=kept.tree.num_candidates,
        depth=kept.depth,
        width=kept.tree.width,
        tree=kept.tree.parents,
        predicted_speed_up=kept.played.speed_up,
        model=config_hash(Path(str(asked.model))),
        costs=kept.costs,
    )
    return Found(policy, _figures(plays, trees, widest, costs.first_s), priors)


def _search_trees(asked: SpeculativeConfig, search: Search) -> tuple[Played, list[StaticTree], _Shape | None]:
    """What a model's ranks are worth, the best static tree of each size, and the one of most tokens a second as an
    engine grows it: of its size, depth and width. None where that is a chain.
    """
    most = search.most_candidates
    depth = min(TREE_DEPTH, most)
    wide = replace(asked, draft_top_k=TREE_WIDTH, draft_depth=depth, num_speculative_tokens=MAX_NODES - 1)
    recorded, costs, _ = _record(search, wide, depth)
    played = play_recorded(recorded, search.costs, costs, MAX_NODES - 1, depth)
    trees = best_trees(played.chances[:depth, :TREE_WIDTH], most + 1)
    tree = _most_promising(trees, search.costs, costs)
    if tree is None or tree.width == 1:
        return played, trees, None
    config = replace(
        asked, draft_top_k=tree.width, draft_depth=tree.depth, num_speculative_tokens=tree.num_candidates
    )
    again, costs, _ = _record(search, config, tree.depth)
    shape = play_recorded(again, search.costs, costs, tree.num_candidates, tree.depth)
    return played, trees, _Shape(tree, tree.depth, shape, costs)


def _record(
    search: Search, config: SpeculativeConfig, depth: int
) -> tuple[Recorded, RoundCosts, dict[str, tuple[float, ...]]]:
    engine = search.open(config)
    try:
        proposer, inner = engine.opened().proposer, engine.opened()
        timed = time_first(proposer, depth, inner.max_model_len)
        candidates = config.num_speculative_tokens or search.most_candidates
        recorded = record(engine, search.prompts, search.max_tokens, most_candidates=candidates)
    finally:
        engine.close()
    priors = {}
    if isinstance(proposer, RankedProposer):
        judged = Judged(proposer.priors)
        for parents, evidence, path in recorded.judged():
            judged.tree(parents, evidence, path)
        priors[proposer.name] = judged.priors()
    return recorded, rounds_of(timed, recorded, depth), priors


def _most_promising(trees: Sequence[StaticTree], costs: PassCosts, rounds: RoundCosts) -> StaticTree | None:
    """The tree of most expected tokens a second: Sequoia's choice by hardware, with times as measured."""
    node_s = costs.by_nodes(len(trees))

    def pace(tree: StaticTree) -> float:
        draft_s = rounds.first_s + (tree.depth - 1) * rounds.level_s
        return tree.expected_tokens / float(node_s[len(tree.parents)] + draft_s)

    return max((tree for tree in trees if tree.num_candidates), key=pace, default=None)


def _chain(count: int, played: Played) -> StaticTree:
    return StaticTree(tuple(range(-1, count)), (0,) * (count + 1), played.tokens_per_pass)


def _figures(
    plays: dict[int, Played], trees: Sequence[StaticTree], widest: Played, draft_s: float
) -> dict[str, Any]:
    depths = widest.num_depths
    return {
        "by_candidates": [
            {
                "candidates": count,
                "tokens_per_pass": each.tokens_per_pass,
                "speed_up": each.speed_up,
                "draft_share": each.draft_s / (each.draft_s + each.verify_s),
            }
            for count, each in plays.items()
        ],
        "chances": widest.chances[:depths].round(5).tolist(),
        "reached": widest.reached[:depths].astype(int).tolist(),
        "trees": [{"parents": tree.parents, "expected_tokens": tree.expected_tokens} for tree in trees],
        "draft_s": draft_s,
    }
