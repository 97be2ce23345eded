"""What a round of a model is worth beside lookups, as native functions: after a pass nothing is in the caches, and each
array call costs as it is touched. Owns no memory."""

import numpy as np

from tspec.kernels.jit import native

PRIOR_CHANCE = 0.7
"""Chance that a model's candidate is right, before it is known: so a model is tried at once."""
PRIOR_WEIGHT = 3.0


@native()
def expected_tokens(hits, trials, slots, depth):
    """Return float64 [B, depth]: expected tokens of a tree of 1, 2, … levels, by what was right at each level.

    Of a text of which little is known, those that run beside it tell.
    hits, trials   float64 [S, D + 1], by slot and depth from 0 on; slots int32 [B]
    """
    tokens = np.empty((len(slots), depth))
    for row in range(len(slots)):
        path, total = 1.0, 0.0
        for level in range(1, depth + 1):
            hits_beside, trials_beside = PRIOR_WEIGHT * PRIOR_CHANCE, PRIOR_WEIGHT
            for other in range(len(slots)):
                if other != row:
                    hits_beside += hits[slots[other], level]
                    trials_beside += trials[slots[other], level]
            beside, slot = hits_beside / trials_beside, slots[row]
            path *= (hits[slot, level] + PRIOR_WEIGHT * beside) / (trials[slot, level] + PRIOR_WEIGHT)
            total += path
            tokens[row, level - 1] = total
    return tokens


@native()
def best_turn(limits, promises, shares, num_late, costs, node_s, rate, num_plain, per_level):
    """Find for which rows a round of the model is worth most, and how deep it goes. A tree is grown whole.

    limits     int32 [B]             most nodes of a row, root included
    promises   float64 [B, depth]    see expected_tokens
    shares     float64 [B, 2]        what comes of promised tokens, and of candidates that were asked for
    num_late   int32 [B]             tokens that the model has not taken in, its root among them
    costs      seconds of a round for one sequence: of the first level, each one more, each token more
    node_s     float64 [N]           seconds of a pass by its nodes
    num_plain  nodes of the pass without candidates
    Returns    (rows int64 ascending, depth, its seconds); depth 0 where none is worth its time
    """
    num_rows, most = promises.shape
    first_s, level_s, token_s = costs
    best_gain, best_depth, best_s, best_rows = 0.0, 0, 0.0, np.zeros(0, dtype=np.int64)
    worth = np.empty(num_rows)
    for depth in range(1 if per_level == 1 else most, most + 1):
        for row in range(num_rows):
            worth[row] = min(promises[row, depth - 1], limits[row] - 1) * shares[row, 0]
            if limits[row] <= 1:
                worth[row] = -np.inf
        order = np.argsort(-worth, kind="mergesort")
        tokens, late, nodes = 0.0, 0, 0.0
        for place in range(num_rows):
            row = order[place]
            if limits[row] <= 1:
                break
            tokens += worth[row]
            late += max(0, num_late[row] - 1)
            nodes += min(depth * per_level, limits[row] - 1) * shares[row, 1]
            growth = node_s[place + 1] / node_s[1]
            seconds = (first_s + (depth - 1) * level_s) * growth + late * token_s
            gain = tokens - rate * (seconds + _rise_s(node_s, num_plain, nodes))
            if gain > best_gain:
                best_gain, best_depth, best_s = gain, depth, seconds
                best_rows = np.sort(order[: place + 1])
    return best_rows, best_depth, best_s


@native()
def _rise_s(node_s, num_plain, num_candidates):
    """What so many candidates add to a pass; they need not be whole numbers."""
    low = min(num_plain + int(num_candidates), len(node_s) - 2)
    part = num_plain + num_candidates - low
    return (1 - part) * node_s[low] + part * node_s[low + 1] - node_s[num_plain]


@native()
def count_chosen(pool, rows):
    """Return int32 [rows]: chosen candidates of each row."""
    found = np.zeros(rows, dtype=np.int32)
    for row in range(rows):
        for node in range(1, pool.counts[row]):
            found[row] += pool.is_chosen[row, node]
    return found
