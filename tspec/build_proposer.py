"""From what a user asks of speculation to a proposer: lookups, a model, or all of them in one tree."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tspec.build_draft import Draft, method_of, open_draft
from tspec.checkpoint.policy_file import config_hash
from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.core.errors import ConfigError
from tspec.core.pass_costs import PassCosts
from tspec.core.policy import AGAIN, Policy
from tspec.core.proposer import CachingProposer, Committed, DraftBatch, Proposer, RankedProposer
from tspec.core.speculative_config import MODEL_METHODS, UNION_METHODS, SpeculativeConfig
from tspec.core.tree import MAX_NODES
from tspec.proposers.caching_union import CachingUnion
from tspec.proposers.model_turns import DraftCosts, ModelTurns, time_rounds
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.none import NoProposer
from tspec.proposers.suffix import SuffixProposer
from tspec.proposers.union import MOST_LOOKED_UP, Union
from tspec.runtime.buckets import NODES
from tspec.runtime.inputs import Executor
from tspec.runtime.pass_times import pass_s, time_passes
from tspec.runtime.speed_up import PlainTimes, known_plain, time_plain

AUTO_CANDIDATES = 15
"""Most candidates of a sequence that are weighed: beyond, even a copied text gains less than the nodes cost."""
ASK_REPEATS = 7
AUTO_NODES = 256
"""Nodes that passes may have in all where each candidate is weighed: what a pass needs memory for."""


def open_model(
    speculative: SpeculativeConfig,
    folder: Path,
    config: ModelConfig,
    *,
    max_model_len: int,
    num_cheap: int,
    activations: DType,
) -> Draft | None:
    """Read and check the proposer's model, if one is asked for. Errors: those of `open_draft`."""
    if speculative.method in UNION_METHODS and speculative.model is not None:
        speculative = replace(speculative, method=method_of(Path(speculative.model)))
    if speculative.method not in MODEL_METHODS:
        return None
    return open_draft(
        speculative,
        folder,
        config,
        max_model_len=max_model_len,
        num_cheap=num_cheap,
        activations=activations,
    )


def most_candidates(speculative: SpeculativeConfig, num_cheap: int, draft: Draft | None) -> int:
    """The most candidates of a sequence and round."""
    if speculative.method == "none":
        return 0
    if speculative.method == "auto":
        return speculative.num_speculative_tokens or AUTO_CANDIDATES
    if draft is not None and speculative.method != "union":
        return draft.max_candidates
    return speculative.num_speculative_tokens or num_cheap


def time_costs(
    executor: Executor,
    speculative: SpeculativeConfig,
    num_cheap_nodes: int,
    max_candidates: int,
    max_rows: int,
    max_model_len: int,
    *,
    is_padded: bool,
) -> PassCosts:
    """Time passes of up to as many nodes as there will be, and what comes between them."""
    most = min(MAX_NODES, (max_candidates + 1) * (2 if max_rows > 1 else 1))
    if is_padded:
        counts = {size for size in NODES if size <= max_candidates + 1}
    else:
        # Costs have steps where rows fill register blocks, and jump where they no longer fit into one.
        cheap = num_cheap_nodes
        counts = {*range(1, cheap + 2), 2 * cheap, max_candidates + 1, most}
    num_nodes = sorted(count for count in counts if 1 <= count <= most)
    costs = time_passes(executor, num_nodes, max_model_len - MAX_NODES, is_padded=is_padded)
    return replace(costs, ask_s=_ask_s(executor, speculative, costs))


def plain_times(executor: Executor, policy: Policy | None) -> PlainTimes:
    """What plain passes take: timed now, or as it was measured before."""
    return time_plain(executor) if policy is None else known_plain(policy.costs.plain_s(1, 0))


def make_proposer(
    speculative: SpeculativeConfig,
    max_candidates: int,
    draft: Draft | None,
    model: Proposer | None,
    costs: PassCosts | None,
    max_model_len: int,
    policy: Policy | None,
    executor: Executor,
) -> Proposer:
    """Return the proposer, its native functions compiled.

    model     what runs `draft`
    costs     of verify passes, for "auto"
    policy    what was measured before: priors of lookups, and costs of a model's rounds
    executor  of the target
    """
    method = speculative.method
    if method == "none":
        return NoProposer()
    if method in UNION_METHODS:
        run_pass = partial(pass_s, executor, 1, 0)
        return _make_union(
            speculative, draft, model, costs or PassCosts.flat(), max_model_len, policy, run_pass
        )
    if model is not None:
        return model
    lookup: RankedProposer = (
        SuffixProposer(speculative, max_candidates=max_candidates)
        if method == "suffix"
        else NgramProposer(replace(speculative, num_speculative_tokens=max_candidates))
    )
    lookup.warm_up()
    return lookup


def _make_union(
    speculative: SpeculativeConfig,
    draft: Draft | None,
    model: Proposer | None,
    costs: PassCosts,
    max_model_len: int,
    policy: Policy | None,
    run_pass: Callable[[], float],
) -> Union:
    priors = {} if policy is None else policy.priors
    lookups = make_lookups(speculative, priors)
    if draft is None or model is None:
        union = Union(speculative.method, lookups, costs)
    else:
        assert isinstance(model, CachingProposer)
        per_level = speculative.draft_top_k
        rounds = _round_costs(speculative, policy)
        if rounds is None:
            rounds = time_rounds(model, draft.depth, max_model_len, run_pass)
        if isinstance(model, RankedProposer):
            _set_priors(model, priors)
        turns = ModelTurns(rounds, draft.depth, per_level)
        union = CachingUnion(speculative.method, lookups, model, turns, costs)
    union.warm_up()
    return union


def make_lookups(
    speculative: SpeculativeConfig, priors: Mapping[str, Sequence[float]] | None = None
) -> list[RankedProposer]:
    """The lookups of a union, their native functions compiled.

    priors   by name, instead of those that a lookup ships with
    Errors   ConfigError for other classes than a lookup's
    """
    asked = replace(speculative, num_speculative_tokens=MOST_LOOKED_UP)
    lookups: list[RankedProposer] = [
        NgramProposer(asked, grows_with_match=False),
        SuffixProposer(asked, max_candidates=MOST_LOOKED_UP),
    ]
    for lookup in lookups:
        _set_priors(lookup, priors or {})
        lookup.warm_up()
    return lookups


def _set_priors(proposer: RankedProposer, by_name: Mapping[str, Sequence[float]]) -> None:
    """Let a proposer start with what its candidates turned out to be."""
    priors = by_name.get(proposer.name)
    if priors is None:
        return
    if len(priors) != len(proposer.priors):
        raise ConfigError(
            f"priors of {proposer.name}",
            got=f"{len(priors)} classes",
            need=f"{len(proposer.priors)}",
            fix=AGAIN,
        )
    proposer.priors = np.array(priors, dtype=np.float32)


def _round_costs(speculative: SpeculativeConfig, policy: Policy | None) -> DraftCosts | None:
    """Costs of a model's rounds, where they were measured for rounds of this shape."""
    if policy is None or speculative.model is None:
        return None
    tuned = policy.of_method(speculative, config_hash(Path(speculative.model)))
    shape = speculative.draft_depth, speculative.draft_top_k
    if tuned is None or tuned.costs is None or (tuned.depth, tuned.width) != shape:
        return None
    return DraftCosts(tuned.costs.first_s, tuned.costs.level_s, tuned.costs.token_s)


def _ask_s(executor: Executor, speculative: SpeculativeConfig, costs: PassCosts) -> float:
    """Seconds of a round of lookups behind a pass, which leaves nothing of them in the caches: median of several."""
    spare, slot, root = (
        Union("auto", make_lookups(speculative), costs),
        np.zeros(1, np.int32),
        np.ones(1, np.int32),
    )
    spare.warm_up()
    spare.admit(0, np.array([*range(1, 33), *range(1, 9), *range(40, 64), 1], dtype=np.int32))
    seconds = []
    for _ in range(ASK_REPEATS):
        pass_s(executor, 1, 0)
        start_s = time.perf_counter()
        spare.propose(DraftBatch(slot, root, 8 * root, contexts=64 * root))
        spare.observe(Committed(slot, root[None], root, slot))
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)
