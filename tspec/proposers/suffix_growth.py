"""Grows one candidate tree from the counts of two populations, a text's own and earlier responses. Native, no memory.

Each node of the tree has a context in each population: the longest end of the text, with the path to the node behind
it, that came before and was continued. Its children are candidates. What speaks for one falls into a class, and the
class has a chance (`priors`); the chance of a candidate is the product of those on its path. The tree takes the best
candidate of all that are left, time after time.
"""

import numpy as np

from tspec.kernels.jit import native
from tspec.proposers.suffix_trie import NONE, RANKED, ROOT, continued, step

OWN, RESPONSES = 0, 1
NUM_POPULATIONS = 2
NUM_MATCHES = 7
NUM_SHARES = 5
NUM_CLASSES = NUM_POPULATIONS * NUM_MATCHES * NUM_SHARES

MIN_CHANCE = 0.05
"""Candidates of a smaller chance are left out."""

CANDIDATES_PER_MATCHED = 3
"""Most candidates for each token of the longest match: a short match is right less often."""

MAX_CHILDREN = RANKED

USED_MATCH = 3
"""A response whose words continue a match of so many tokens counts as used."""

OFFER = np.dtype(
    [("token", np.int32), ("parent", np.int32), ("evidence", np.int32), ("chance", np.float64)], align=True
)
"""A candidate that may be taken, `parent` its node in the tree; a chance of 0 when it was taken."""

MAX_OFFERS_PER_NODE = NUM_POPULATIONS * RANKED


@native()
def class_of(population, match, count, total):
    """Return the class of evidence of a token that came `count` times in `total` after a match of `match` tokens."""
    if match <= 4:
        length = match - 1
    else:
        length = 4 if match <= 6 else 5 if match <= 9 else 6
    if 4 * count < total:
        share = 0
    elif 2 * count < total:
        share = 1
    elif 10 * count < 9 * total:
        share = 2
    else:
        share = 3 if count == 1 else 4
    return (population * NUM_MATCHES + length) * NUM_SHARES + share


@native()
def match_responses(nodes, table, text):
    """Return the longest end of `text` int32 [n] that occurs in the responses and is continued there."""
    context = ROOT
    for token in text:
        context = step(nodes, table, context, token)
    return context


@native()
def grow_tree(
    tokens,
    parents,
    evidence,
    own,
    newest,
    length,
    responses,
    text_end,
    limit,
    priors,
    offers,
    contexts,
    chances,
):
    """Grow a tree of at most `limit` candidates, and at most CANDIDATES_PER_MATCHED a token of the longest match.

    tokens, parents, evidence  int32 [T] out, T > limit; node 0 and padding are left as they are
    own, responses             (nodes, table) of each population
    newest, length             the text's longest run at its end, and its tokens
    text_end                   int32 [n <= DEPTH], its last tokens
    priors                     float32 [NUM_CLASSES]
    offers, contexts, chances  scratch: OFFER [MAX_OFFERS_PER_NODE * T], int32 [T, 2], float64 [T]

    Returns nodes, and the stamp of the response that would continue a match of USED_MATCH tokens or more, NONE for none
    """
    contexts[0, OWN] = continued(own[0], newest)
    contexts[0, RESPONSES] = match_responses(responses[0], responses[1], text_end)
    match = max(own[0][contexts[0, OWN]].depth, responses[0][contexts[0, RESPONSES]].depth)
    limit = min(limit, CANDIDATES_PER_MATCHED * match)
    chances[0] = 1.0
    num_nodes, num_offers = 1, 0
    while num_nodes <= limit:
        num_offers = _offer(
            offers, num_offers, num_nodes - 1, contexts, chances, own, responses, length, priors
        )
        best = _best_offer(offers, num_offers, parents, num_nodes)
        if best == NONE:
            break
        token, parent = offers[best].token, offers[best].parent
        tokens[num_nodes], parents[num_nodes] = token, parent
        evidence[num_nodes] = offers[best].evidence
        chances[num_nodes] = offers[best].chance
        for population in range(NUM_POPULATIONS):
            nodes, table = own if population == OWN else responses
            contexts[num_nodes, population] = step(nodes, table, contexts[parent, population], token)
        offers[best].chance = 0.0
        num_nodes += 1
    return num_nodes, _used_response(responses[0], contexts[0, RESPONSES])


@native()
def _offer(offers, num_offers, node, contexts, chances, own, responses, length, priors):
    """Add the likely continuations of a node's contexts; a token of both populations once, as the better of the two."""
    first = num_offers
    for population in range(NUM_POPULATIONS):
        nodes = own[0] if population == OWN else responses[0]
        context = contexts[node, population]
        if context == ROOT:
            continue
        total = nodes[context].count
        if population == OWN and nodes[context].last == length:
            total -= 1  # the end of the text: nothing came after it yet
        child = nodes[context].first_child
        for _ in range(RANKED):
            if child == NONE:
                break
            evidence = class_of(population, nodes[context].depth, nodes[child].count, total)
            chance = chances[node] * priors[evidence]
            at = first
            while at < num_offers and offers[at].token != nodes[child].token:
                at += 1
            is_new = at == num_offers
            if chance >= MIN_CHANCE and (is_new or chance > offers[at].chance):
                offers[at].token = nodes[child].token
                offers[at].parent = node
                offers[at].evidence = evidence
                offers[at].chance = chance
                num_offers += is_new
            child = nodes[child].next
    return num_offers


@native()
def _best_offer(offers, num_offers, parents, num_nodes):
    """Return the likeliest offer that is left and whose parent has room for a child, the earliest of equals."""
    best = NONE
    for at in range(num_offers):
        if offers[at].chance > 0.0 and (best == NONE or offers[at].chance > offers[best].chance):
            num_children = 0
            for node in range(1, num_nodes):
                num_children += parents[node] == offers[at].parent
            if num_children < MAX_CHILDREN:
                best = at
    return best


@native()
def _used_response(nodes, context):
    if nodes[context].depth < USED_MATCH:
        return np.int64(NONE)
    return nodes[nodes[context].first_child].last
