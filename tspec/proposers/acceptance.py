"""How often candidates are right: learned by class of evidence, and corrected for each text.

A candidate is judged by the text that comes, whether a verify pass looked at it or not: that costs nothing, and so
a proposer that is not used for a while is still known. The estimate of a class is its share of right candidates, which
starts at the proposer's prior; candidates that several proposers give are told from those of one alone. A text's own
factor corrects it, as texts differ: right candidates over those that the estimates let expect, by proposer and by how
good its candidates are in general.
"""

from collections.abc import Sequence

import numpy as np

from tspec.core.proposer import RankedProposer
from tspec.proposers.acceptance_rows import Known

GROUP_BOUNDS = (0.25, 0.5, 0.75)
"""Classes of a proposer are grouped by their priors, for factors."""
NUM_GROUPS = len(GROUP_BOUNDS) + 1
MAX_DEPTH = 16
"""Depths that are told apart."""
ALONE, SHARED = 0.7, 1.0
"""What a prior is multiplied by, where one of several proposers gives a candidate, and where more do."""


def first_classes(proposers: Sequence[RankedProposer]) -> list[int]:
    """The number of each proposer's class 0, where classes of all are numbered through."""
    ends = np.cumsum([len(each.priors) for each in proposers])
    return [0, *ends[:-1].tolist()]


def know_nothing(proposers: Sequence[RankedProposer]) -> Known:
    """Return the priors of so many proposers, and no texts."""
    each_prior = [np.asarray(each.priors, dtype=np.float64) for each in proposers]
    joined = np.concatenate(each_prior)
    alone, shared = (1.0, 1.0) if len(proposers) == 1 else (ALONE, SHARED)
    priors = np.stack([alone * joined, np.minimum(1, shared * joined)], axis=1)
    groups = [
        number * NUM_GROUPS + np.searchsorted(GROUP_BOUNDS, prior) for number, prior in enumerate(each_prior)
    ]
    num_groups, depths = NUM_GROUPS * len(proposers), (len(proposers), 0, MAX_DEPTH + 1)
    return Known(
        estimates=priors.copy(),
        priors=priors,
        counts=np.zeros((*priors.shape, 2)),
        groups=np.concatenate(groups).astype(np.int32),
        factors=np.ones((0, num_groups)),
        texts=np.zeros((0, num_groups, 2)),
        depth_hits=np.zeros(depths),
        depth_trials=np.zeros(depths),
    )


def start_text(known: Known, slot: int) -> Known:
    """Return what is known, with room for a slot whose text nothing is known of."""
    if slot >= len(known.factors):
        more = max(slot + 1, 2 * len(known.factors)) - len(known.factors)
        depths = np.zeros((len(known.depth_hits), more, MAX_DEPTH + 1))
        known = known._replace(
            factors=np.concatenate([known.factors, np.ones((more, known.factors.shape[1]))]),
            texts=np.concatenate([known.texts, np.zeros((more, *known.texts.shape[1:]))]),
            depth_hits=np.concatenate([known.depth_hits, depths], axis=1),
            depth_trials=np.concatenate([known.depth_trials, depths], axis=1),
        )
    known.factors[slot] = 1
    known.texts[slot] = 0
    known.depth_hits[:, slot] = known.depth_trials[:, slot] = 0
    return known
