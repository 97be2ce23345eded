"""Learning from what came, as native functions. Owns no memory."""

from typing import NamedTuple

import numpy as np

from tspec.kernels.jit import native
from tspec.proposers.pool import NO_CLASS

PRIOR_WEIGHT = 8.0
"""Judged candidates that a prior counts as."""
CLASS_MEMORY = 2000.0
"""Judged candidates after which a class has forgotten most of what was before."""
TEXT_MEMORY = 16.0
"""The same for a text's own factor: a text may change at any time."""
TEXT_WEIGHT = 1.5
"""Judged candidates that a factor of one counts as."""
MOST, LEAST = 0.98, 0.002
"""Bounds of an estimate: nothing is certain."""


class Known(NamedTuple):
    """What has been learned of the candidates of P proposers with C classes in all, in the texts of S slots.

    estimates     float64 [C, 2]     chance that a candidate of a class is right: given by one proposer, by several
    priors        float64 [C, 2]     the same before anything was known
    counts        float64 [C, 2, 2]  right ones and all that were judged, faded
    groups        int32 [C]          the group of each class, for factors
    factors       float64 [S, G]     correction of the estimates of a group in a text
    texts         float64 [S, G, 2]  right ones, and what the estimates let expect, faded
    depth_hits    float64 [P, S, D]  trees of a proposer with a right candidate at a depth, faded
    depth_trials  float64 [P, S, D]  those of which candidates there were judged
    """

    estimates: np.ndarray
    priors: np.ndarray
    counts: np.ndarray
    groups: np.ndarray
    factors: np.ndarray
    texts: np.ndarray
    depth_hits: np.ndarray
    depth_trials: np.ndarray


@native()
def judge_rows(known, pool, rows, slots, tokens, counts):
    """Walk each row of a pool along what came, as far as it goes; each child of a node on the way is right or wrong.

    Shapes   rows int32 [B]: the row in the pool of each text, -1 for none; slots int32 [B]; tokens int32 [B, D];
             counts int32 [B]: how many tokens came
    """
    for place in range(len(rows)):
        row, slot, node = rows[place], slots[place], 0
        if row < 0:
            continue
        for depth in range(1, counts[place] + 1):
            found = -1
            for child in range(node + 1, pool.counts[row]):
                if pool.parents[row, child] == node:
                    is_right = pool.tokens[row, child] == tokens[place, depth - 1]
                    _judge_node(known, pool.classes[row, child], slot, is_right)
                    if is_right:
                        found = child
            _judge_level(known, pool, row, node, found, slot, depth)
            if found < 0:
                break
            node = found


@native()
def chance_of(known, classes, slot):
    """Chance that a node is right, where all before it are: the mean of what its sources' classes say."""
    is_shared, chance, num_given = _is_shared(classes), 0.0, 0
    for number in classes:
        if number != NO_CLASS:
            chance += known.estimates[number, is_shared] * known.factors[slot, known.groups[number]]
            num_given += 1
    return min(MOST, max(LEAST, chance / num_given))


@native()
def _is_shared(classes):
    """1 where several sources gave a node, else 0."""
    return 1 if (classes != NO_CLASS).sum() > 1 else 0


@native()
def _judge_node(known, classes, slot, is_right):
    is_shared = _is_shared(classes)
    for number in classes:
        if number != NO_CLASS:
            _learn(known, number, is_shared, slot, 1.0 if is_right else 0.0)


@native()
def _learn(known, number, is_shared, slot, one):
    group, text_fading, class_fading = known.groups[number], 1 - 1 / TEXT_MEMORY, 1 - 1 / CLASS_MEMORY
    text = known.texts[slot, group]
    text[0] = text_fading * text[0] + one
    text[1] = text_fading * text[1] + known.estimates[number, is_shared]
    known.factors[slot, group] = (text[0] + TEXT_WEIGHT) / (text[1] + TEXT_WEIGHT)
    counts = known.counts[number, is_shared]
    counts[0] = class_fading * counts[0] + one
    counts[1] = class_fading * counts[1] + 1
    prior = known.priors[number, is_shared]
    known.estimates[number, is_shared] = (counts[0] + PRIOR_WEIGHT * prior) / (counts[1] + PRIOR_WEIGHT)


@native()
def _judge_level(known, pool, row, node, found, slot, depth):
    """Note for each source whether one of its candidates below a node was right, if it had any there."""
    level, fading = min(depth, known.depth_hits.shape[2] - 1), 1 - 1 / TEXT_MEMORY
    for source in range(pool.classes.shape[2]):
        for child in range(node + 1, pool.counts[row]):
            if pool.parents[row, child] == node and pool.classes[row, child, source] != NO_CLASS:
                is_hit = found >= 0 and pool.classes[row, found, source] != NO_CLASS
                hits, trials = known.depth_hits[source, slot], known.depth_trials[source, slot]
                hits[level] = fading * hits[level] + (1.0 if is_hit else 0.0)
                trials[level] = fading * trials[level] + 1
                break
