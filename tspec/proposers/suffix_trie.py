"""Counts of every short run of tokens in texts, as native functions on plain arrays. Owns no memory.

A node stands for a run of 1 to DEPTH + 1 tokens that occurs: its parent is the run without its last token, `shorter`
the run without its first. A run of up to DEPTH tokens is a context, and its children are what came next.
  nodes  NODE [any]               node 0 is the root, the empty run
  table  int32 [a power of two]   node numbers by parent and token: an open-addressing hash table, NONE where free
  state  STATE [1]
An entry names a node, and the node its parent and token, so a hash collision can cost a probe and never gives a wrong
match. Of a context's children the first RANKED are its likeliest, in order: by count, then the one counted last, then
by token. Those behind are in no order. The root's children are in the table alone: there are too many to rank.
"""

import numpy as np

from tspec.kernels.jit import native

DEPTH = 10
"""Tokens of the longest context."""

RANKED = 4
"""Children of a context that are kept in order."""

NODES_PER_TOKEN = DEPTH + 1
"""Most nodes that a token adds. The root needs none besides: the first tokens of a text add fewer."""

ENTRIES_PER_TOKEN = 16
"""Table entries a token: at most eleven of sixteen are ever taken."""

NONE = -1
ROOT = 0

NODE = np.dtype(
    [
        ("parent", np.int32),
        ("token", np.int32),  # the last of the run
        ("shorter", np.int32),
        ("depth", np.int32),  # tokens of the run
        ("count", np.int32),  # its occurrences
        ("first_child", np.int32),
        ("next", np.int32),  # sibling; of a free node: the next free one
        ("previous", np.int32),  # sibling
        ("last", np.int64),  # stamp of the occurrence that was added last
    ],
    align=True,
)

STATE = np.dtype([("num_nodes", np.int32), ("first_free", np.int32)], align=True)
"""How many nodes have ever been used, the root among them, and the first of those that are free again."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF_BITS = np.uint64(32)


def make_arrays(num_tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return nodes, table and state with room for texts of `num_tokens` in all, and nothing counted."""
    nodes = np.zeros(NODES_PER_TOKEN * max(1, num_tokens), dtype=NODE)
    nodes[ROOT]["parent"] = nodes[ROOT]["first_child"] = NONE
    num_entries = ENTRIES_PER_TOKEN
    while num_entries < ENTRIES_PER_TOKEN * num_tokens:
        num_entries *= 2
    state = np.zeros(1, dtype=STATE)
    state[0] = (1, NONE)
    return nodes, np.full(num_entries, NONE, dtype=np.int32), state


@native()
def append_tokens(nodes, table, state, tokens, newest, stamp, stamp_step):
    """Count `tokens` int32 [n] as what comes after the run `newest`, ROOT at the start of a text.

    stamp, stamp_step  the first token's stamp, and how much later each further one is
    Returns            the longest run that ends with the last token
    Cost               O(DEPTH) a token; allocates nothing
    """
    for offset in range(len(tokens)):
        context = newest if nodes[newest].depth <= DEPTH else nodes[newest].shorter
        newest = NONE
        longer = NONE
        while context != NONE:
            child = _counted_child(nodes, table, state, context, tokens[offset], stamp + offset * stamp_step)
            if newest == NONE:
                newest = child
            else:
                nodes[longer].shorter = child
            longer = child
            context = nodes[context].shorter if context != ROOT else NONE
        nodes[longer].shorter = ROOT
    return newest


@native()
def remove_tokens(nodes, table, state, tokens, count):
    """Take back the first `count` of a text, `tokens` int32 [n], that was counted from ROOT on; free what is gone.

    What is left is counted as a text of its own. Start by start, each from its longest run to its shortest: so a run
    goes after all runs that it ends or begins.
    """
    path = np.empty(DEPTH + 1, dtype=np.int32)
    for start in range(count):
        length = min(DEPTH + 1, len(tokens) - start)
        node = ROOT
        for offset in range(length):
            node = find_child(nodes, table, node, tokens[start + offset])
            path[offset] = node
        for offset in range(length - 1, -1, -1):
            _take_back(nodes, table, state, path[offset])


@native()
def step(nodes, table, context, token):
    """Return the longest run that ends with `token`, goes on from `context` or its end, and has been continued."""
    child = find_child(nodes, table, context, token)
    while child == NONE and context != ROOT:
        context = nodes[context].shorter
        child = find_child(nodes, table, context, token)
    return ROOT if child == NONE else continued(nodes, child)


@native()
def continued(nodes, context):
    """Return the longest end of `context`, itself included, that something came after; ROOT for none."""
    while context != ROOT and nodes[context].first_child == NONE:
        context = nodes[context].shorter
    return context


@native()
def find_child(nodes, table, parent, token):
    """Return the run `parent` with `token` behind it, NONE where it does not occur."""
    return table[_entry_of(nodes, table, parent, token)]


@native()
def _entry_of(nodes, table, parent, token):
    entry = _home(table, parent, token)
    while table[entry] != NONE:
        node = nodes[table[entry]]
        if node.parent == parent and node.token == token:
            break
        entry = (entry + 1) & (len(table) - 1)
    return entry


@native()
def _home(table, parent, token):
    key = (np.uint64(np.uint32(parent)) << _HALF_BITS) | np.uint64(np.uint32(token))
    key = (key ^ (key >> _HALF_BITS)) * _MULTIPLIER
    return np.int64((key >> _HALF_BITS) & np.uint64(len(table) - 1))


@native()
def _counted_child(nodes, table, state, context, token, stamp):
    entry = _entry_of(nodes, table, context, token)
    child = table[entry]
    is_new = child == NONE
    if is_new:
        child = _take_node(nodes, state)
        table[entry] = child
        node = nodes[child]
        node.parent = context
        node.token = token
        node.depth = nodes[context].depth + 1
        node.count = 0
        node.first_child = NONE
    nodes[child].count += 1
    nodes[child].last = stamp
    if context != ROOT and (is_new or nodes[context].first_child != child):
        if not is_new:
            _unlink(nodes, child)
        _insert(nodes, child, RANKED)
    return child


@native()
def _take_node(nodes, state):
    node = state[0].first_free
    if node == NONE:
        node = state[0].num_nodes
        state[0].num_nodes += 1
    else:
        state[0].first_free = nodes[node].next
    return node


@native()
def _take_back(nodes, table, state, child):
    parent = nodes[child].parent
    nodes[child].count -= 1
    is_gone = nodes[child].count == 0
    if parent != ROOT and (is_gone or nodes[nodes[parent].first_child].next != NONE):
        was_ranked = _is_ranked(nodes, child)
        rank = RANKED - 1
        if is_gone or was_ranked:
            _unlink(nodes, child)
        if was_ranked and not is_gone:
            rank = _insert(nodes, child, RANKED - 1)
        if was_ranked and rank == RANKED - 1:
            _fill_last_rank(nodes, parent)
    if is_gone:
        _free_entry(nodes, table, _entry_of(nodes, table, parent, nodes[child].token))
        nodes[child].next = state[0].first_free
        state[0].first_free = child


@native()
def _free_entry(nodes, table, hole):
    """Free an entry, and move those behind it that would not be found any more."""
    mask = len(table) - 1
    entry = (hole + 1) & mask
    while table[entry] != NONE:
        node = nodes[table[entry]]
        home = _home(table, node.parent, node.token)
        if ((entry - home) & mask) >= ((entry - hole) & mask):
            table[hole] = table[entry]
            hole = entry
        entry = (entry + 1) & mask
    table[hole] = NONE


@native()
def _precedes(nodes, one, other):
    if nodes[one].count != nodes[other].count:
        return nodes[one].count > nodes[other].count
    if nodes[one].last != nodes[other].last:
        return nodes[one].last > nodes[other].last
    return nodes[one].token < nodes[other].token


@native()
def _insert(nodes, child, limit):
    """Link a child where it belongs among the first `limit` siblings, else just behind them; return its rank."""
    parent = nodes[child].parent
    before, after, rank = NONE, nodes[parent].first_child, 0
    while after != NONE and rank < limit and _precedes(nodes, after, child):
        before, after, rank = after, nodes[after].next, rank + 1
    nodes[child].previous = before
    nodes[child].next = after
    if before == NONE:
        nodes[parent].first_child = child
    else:
        nodes[before].next = child
    if after != NONE:
        nodes[after].previous = child
    return rank


@native()
def _unlink(nodes, child):
    before, after = nodes[child].previous, nodes[child].next
    if before == NONE:
        nodes[nodes[child].parent].first_child = after
    else:
        nodes[before].next = after
    if after != NONE:
        nodes[after].previous = before


@native()
def _is_ranked(nodes, child):
    rank, sibling = 0, nodes[child].previous
    while sibling != NONE and rank < RANKED:
        rank, sibling = rank + 1, nodes[sibling].previous
    return rank < RANKED


@native()
def _fill_last_rank(nodes, parent):
    """Bring the best of the children behind the first RANKED - 1 to the front of them."""
    at = nodes[parent].first_child
    for _ in range(RANKED - 1):
        if at != NONE:
            at = nodes[at].next
    best = at
    while at != NONE:
        if _precedes(nodes, at, best):
            best = at
        at = nodes[at].next
    if best != NONE:
        _unlink(nodes, best)
        _insert(nodes, best, RANKED - 1)
