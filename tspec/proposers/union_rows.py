"""One tree a row out of the trees of several proposers, as native functions on a Pool. Owns no memory."""

from typing import NamedTuple

import numpy as np

from tspec.core.tree import MAX_NODES, NO_PARENT
from tspec.kernels.jit import native
from tspec.proposers.acceptance_rows import chance_of
from tspec.proposers.pool import NO_CLASS


class PassPrices(NamedTuple):
    """What candidates cost in a round.

    contexts    int32 [B]    tokens before each root
    node_s      float64 [N]  seconds of a pass by its nodes in all
    context_s   float64 [MAX_NODES + 1]  seconds a token of context, by the nodes of its sequence
    num_beside  nodes of other rows in the same pass
    rate        tokens that a second is worth
    is_padded   whether a pass costs what its bucket holds
    """

    contexts: np.ndarray
    node_s: np.ndarray
    context_s: np.ndarray
    num_beside: int
    rate: float
    is_padded: bool


@native()
def start_rows(pool, roots):
    """Leave each row its root alone."""
    for row in range(len(roots)):
        pool.tokens[row, 0] = roots[row]
        pool.parents[row, 0] = NO_PARENT
        pool.classes[row, 0, :] = NO_CLASS
        pool.counts[row] = 1


@native()
def merge_rows(pool, trees, first_class, source):
    """Add one source's trees to the pool. What finds no more room there is left out, with all below it.

    Cost: nodes times the pool's nodes a row
    """
    place = np.empty(MAX_NODES, dtype=np.int32)
    for row in range(len(trees.num_nodes)):
        place[0] = 0
        for node in range(1, trees.num_nodes[row]):
            place[node] = -1
            parent = place[trees.parents[row, node]]
            if parent >= 0:
                place[node] = _child(pool, row, parent, trees.tokens[row, node])
            if place[node] >= 0:
                pool.classes[row, place[node], source] = first_class + trees.evidence[row, node]


@native()
def _child(pool, row, parent, token):
    """The child of a node with this token, a new one if need be; -1 where there is no room."""
    for node in range(parent + 1, pool.counts[row]):
        if pool.parents[row, node] == parent and pool.tokens[row, node] == token:
            return node
    node = pool.counts[row]
    if node == pool.tokens.shape[1]:
        return -1
    pool.counts[row] += 1
    pool.tokens[row, node] = token
    pool.parents[row, node] = parent
    pool.classes[row, node, :] = NO_CLASS
    return node


@native()
def weigh_rows(pool, known, slots):
    """Estimate the chance of each node of the pool."""
    for row in range(len(slots)):
        for node in range(1, pool.counts[row]):
            pool.chances[row, node] = chance_of(known, pool.classes[row, node], slots[row])


@native()
def choose_nodes(pool, limits, prices):
    """Mark the candidates whose expected tokens are worth more than the time that they add to the pass.

    Candidates are taken from the likeliest on; so many of them that expected tokens less `rate` times the pass's
    seconds are most. Those of a parent share its chance: all of them together cannot be likelier than it.

    limits    int32 [B]  most nodes of a row
    Returns   (what that is more than without candidates, seconds of the pass, seconds without candidates)
    """
    rows = len(limits)
    scores, places = _scores(pool, rows)
    order = np.argsort(-scores, kind="mergesort")
    num_chosen, widest, total = np.ones(rows, dtype=np.int32), 1, rows + prices.num_beside
    extra_s = prices.contexts.sum() * prices.context_s[1]
    plain_s = _pass_s(prices, rows, widest, total) + extra_s
    expected, best_gain, best, best_s = 0.0, 0.0, 0, plain_s
    for number in range(len(order)):
        row, node = places[order[number]]
        if scores[order[number]] <= 0:
            break
        if num_chosen[row] >= min(limits[row], MAX_NODES) or not _has_parent(pool, row, node):
            continue
        pool.is_chosen[row, node] = True
        rise_s = prices.context_s[num_chosen[row] + 1] - prices.context_s[num_chosen[row]]
        extra_s += prices.contexts[row] * rise_s
        num_chosen[row] += 1
        widest, total = max(widest, num_chosen[row]), total + 1
        expected += scores[order[number]]
        seconds = _pass_s(prices, rows, widest, total) + extra_s
        gain = expected - prices.rate * (seconds - plain_s)
        if gain > best_gain:
            best, best_gain, best_s = number + 1, gain, seconds
    _keep_first(pool, order, scores, places, best, rows)
    return best_gain, best_s, plain_s


@native()
def _scores(pool, rows):
    """Chance that a candidate and all before it are right, of all candidates; and their places, int32 [n, 2]."""
    num_candidates = 0
    for row in range(rows):
        num_candidates += pool.counts[row] - 1
        pool.is_chosen[row, : pool.counts[row]] = False
    scores, places = np.empty(num_candidates), np.empty((num_candidates, 2), dtype=np.int32)
    left, of_node, number = np.empty(pool.parents.shape[1]), np.empty(pool.parents.shape[1]), 0
    for row in range(rows):
        left[: pool.counts[row]] = 1.0  # of a parent's chance, not yet given to a child
        of_node[0] = 1.0
        for node in range(1, pool.counts[row]):
            parent = pool.parents[row, node]
            chance = min(pool.chances[row, node], left[parent])
            left[parent] -= chance
            of_node[node] = scores[number] = chance * of_node[parent]
            places[number, 0], places[number, 1] = row, node
            number += 1
    return scores, places


@native()
def _keep_first(pool, order, scores, places, best, rows):
    """Keep those that were chosen among the first `best` of `order`, and sum up what they promise."""
    pool.gains[:rows] = 0.0
    for number in range(len(order)):
        row, node = places[order[number]]
        if number >= best:
            pool.is_chosen[row, node] = False
        elif pool.is_chosen[row, node]:
            pool.gains[row] += scores[order[number]]


@native()
def _has_parent(pool, row, node):
    parent = pool.parents[row, node]
    return parent == 0 or pool.is_chosen[row, parent]


@native()
def _pass_s(prices, rows, widest, total):
    if prices.is_padded:
        size, width = 1, 1
        while size < rows:
            size *= 2
        while width < widest:
            width *= 2
        total = size * width
    return prices.node_s[total]


@native()
def write_trees(pool, tokens, parents, sources, num_nodes):
    """Write the chosen nodes of each row, with its root, as candidate trees. Parents stay before their children.

    Returns   the most nodes of a row
    """
    place = np.empty(pool.tokens.shape[1], dtype=np.int32)
    for row in range(len(num_nodes)):
        num = 0
        for node in range(pool.counts[row]):
            if node > 0 and not pool.is_chosen[row, node]:
                continue
            place[node] = num
            tokens[row, num] = pool.tokens[row, node]
            parents[row, num] = NO_PARENT if node == 0 else place[pool.parents[row, node]]
            sources[row, num] = 0
            for source in range(pool.classes.shape[2]):
                if pool.classes[row, node, source] != NO_CLASS:
                    sources[row, num] |= 1 << source
            num += 1
        num_nodes[row] = num
        tokens[row, num:] = 0
        parents[row, num:] = NO_PARENT
        sources[row, num:] = 0
    return num_nodes.max()
