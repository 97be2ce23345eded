"""The mask of a node is what plain decoding would allow had its path been committed, over several rounds.

Run: pytest tests/property/test_masks_per_node.py
"""

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tspec.core.constraint import token_bits
from tspec.core.sampling_params import SamplingParams
from tspec.core.shapes import mask_words
from tspec.core.tree import NO_PARENT
from tspec.runtime.masks import TokenMasks

VOCAB = 36
"""More than a word of bits, and not all of two."""
COMMON = 4
"""Texts and bad words are of few tokens, so that they meet."""
UNTOUCHED = 0x5A5A5A

common = st.integers(0, COMMON - 1)
anything = st.one_of(common, common, st.integers(0, VOCAB - 1))


class Automaton:
    """A constraint: from each of its places, which tokens may come and where each leads."""

    def __init__(self, allowed, leads_to):
        self.allowed, self.leads_to = allowed, leads_to

    def start(self, vocab_size, stop_ids):
        return Walk(self)

    def allows(self, output):
        """Which tokens may come after `output`, from the start, without a state."""
        place = 0
        for token in output:
            assert token in self.allowed[place]
            place = self.leads_to[place][token % COMMON]
        return self.allowed[place]


class Walk:
    """Where a text stands in an automaton."""

    def __init__(self, automaton):
        self.automaton, self.places = automaton, [0]

    def fill_mask(self, mask):
        mask[:] = token_bits(VOCAB, self.automaton.allowed[self.places[-1]])

    def advance(self, token):
        if token not in self.automaton.allowed[self.places[-1]]:
            return False
        self.places.append(self.automaton.leads_to[self.places[-1]][token % COMMON])
        return True

    def take_back(self, count):
        assert 0 <= count < len(self.places), (count, self.places)
        self.places = self.places[: len(self.places) - count]


@st.composite
def automata(draw):
    count = draw(st.integers(1, 3))
    some = st.sets(common, min_size=1).map(lambda few: few | {token + COMMON for token in few} | {VOCAB - 1})
    places = st.lists(st.integers(0, count - 1), min_size=COMMON, max_size=COMMON)
    return Automaton(
        draw(st.lists(some, min_size=count, max_size=count)),
        draw(st.lists(places, min_size=count, max_size=count)),
    )


requests = st.fixed_dictionaries(
    {},
    optional={
        "bad_words": st.lists(st.lists(common, min_size=1, max_size=5), max_size=8),
        "allowed_token_ids": st.sets(anything, min_size=1).map(lambda ids: sorted(ids | {VOCAB - 2})),
        "min_tokens": st.integers(1, 8),
        "constraint": automata(),
    },
)


@st.composite
def trees(draw):
    """Tokens and parents of the nodes below a root: random shapes, all kinds of orders."""
    edges = []
    for _ in range(draw(st.integers(0, 12))):
        edge = draw(st.integers(0, len(edges))), draw(anything)
        if edge not in edges:
            edges.append(edge)
    return edges


def allowed_after(params, stops, prompt, output):
    """The definition, token by token."""
    text = [*prompt, *output]
    allowed = []
    for token in range(VOCAB):
        said = [*text, token]
        is_bad = any(tuple(said[-len(word) :]) == tuple(word) for word in params.bad_words)
        is_early = token in stops and len(output) < params.min_tokens
        is_listed = params.allowed_token_ids is None or token in params.allowed_token_ids
        follows = params.constraint is None or token in params.constraint.allows(output)
        if is_listed and follows and not is_bad and not is_early:
            allowed.append(token)
    return allowed


def rows_of(mask):
    return [np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() for row in mask]


def check_round(masks, params, stops, prompt, output, edges):
    """Fill a tree and check each row; returns where a text could go: (output, allowed) of the nodes it can reach."""
    text, count = [*prompt, *output], len(edges) + 1
    nodes = np.array([text[-1], *(token for _, token in edges), -1], dtype=np.int32)
    parents = np.array([NO_PARENT, *(parent for parent, _ in edges), NO_PARENT], dtype=np.int32)
    mask = np.full((count + 1, mask_words(VOCAB)), UNTOUCHED, dtype=np.int32)
    masks.fill(mask, text, len(output), nodes, parents, count)
    rows = rows_of(mask[:count])
    assert (mask[count] == UNTOUCHED).all()
    assert rows[0] == allowed_after(params, stops, prompt, output)
    paths, reached = [output], {0}
    for node, (parent, token) in enumerate(edges, start=1):
        paths.append([*paths[parent], token])
        if parent in reached and token in rows[parent]:
            reached.add(node)
        if node in reached or params.constraint is None:
            assert rows[node] == allowed_after(params, stops, prompt, paths[node])
        else:
            assert rows[node] == []
    return [(paths[node], rows[node]) for node in sorted(reached)]


@settings(deadline=None, max_examples=300)
@given(requests, st.sets(anything, max_size=3), st.lists(anything, min_size=1, max_size=6), st.data())
def test_a_node_allows_what_plain_decoding_would(request_params, stops, prompt, data):
    params = SamplingParams(max_tokens=100, **request_params)
    stops = stops - {VOCAB - 2}  # one token that is never forbidden, so that no request is impossible
    masks = TokenMasks(params, stops, VOCAB)
    output = []
    for _ in range(data.draw(st.integers(1, 4))):
        places = check_round(masks, params, stops, prompt, output, data.draw(trees()))
        path, allowed = data.draw(st.sampled_from(places))
        event(f"accepted {min(len(path) - len(output), 3)}")
        if not allowed:
            event("nothing allowed")
            break
        path = [*path, data.draw(st.sampled_from(allowed))]
        masks.commit(path[len(output) :])
        output = path
    root = np.empty((1, mask_words(VOCAB)), dtype=np.int32)
    masks.fill_root(root[0], [*prompt, *output], len(output))
    assert rows_of(root) == [allowed_after(params, stops, prompt, output)]
    assert (masks.why_no_token([*prompt, *output], len(output)) is None) == bool(rows_of(root)[0])
