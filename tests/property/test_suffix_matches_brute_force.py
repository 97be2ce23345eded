"""Suffix proposals equal those of an oracle that reads every text again, whatever happened before.

Run: python -m pytest tests/property/test_suffix_matches_brute_force.py
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.suffix_oracle import RESPONSES, SuffixOracle, runs_of

from tspec.core.proposer import Committed, DraftBatch
from tspec.core.speculative_config import SpeculativeConfig
from tspec.proposers import suffix_store
from tspec.proposers.suffix import CATCH_UP_TOKENS, SuffixProposer
from tspec.proposers.suffix_store import ResponseStore
from tspec.proposers.suffix_trie import NONE, RANKED, ROOT, find_child

NUM_SLOTS = 3
ANY = 64

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=30)
varied = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8]), min_size=1, max_size=30)
texts = st.one_of(tokens, varied, st.lists(st.just(7), min_size=1, max_size=30))
slots = st.integers(0, NUM_SLOTS - 1)
events = st.one_of(
    st.tuples(st.just("admit"), slots, texts),
    st.tuples(st.just("observe"), st.permutations(range(NUM_SLOTS)), st.lists(texts, min_size=1, max_size=3)),
    st.tuples(st.just("release"), slots),
    st.tuples(st.just("learn"), texts),
)


@pytest.fixture(autouse=True, scope="module")
def small_texts():
    """Let texts of a few tokens outgrow their memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix_store, "MIN_CAPACITY_TOKENS", 4)
        yield


def apply(event, proposer, oracle):
    """Do the same to both."""
    match event:
        case ("admit", slot, prompt):
            proposer.admit(slot, np.array(prompt, dtype=np.int32))
            oracle.admit(slot, prompt)
        case ("release", slot):
            proposer.release(slot)
            oracle.release(slot)
        case ("learn", response):
            proposer.learn(np.array(response, dtype=np.int32))
            oracle.learn(response)
            oracle.catch_up(ANY * ANY)
        case ("observe", order, rows):
            width = max(map(len, rows))
            padded = np.array([[*row, *[9] * (width - len(row))] for row in rows], dtype=np.int32)
            counts = np.array([len(row) for row in rows], dtype=np.int32)
            order = np.array(order[: len(rows)], dtype=np.int32)
            proposer.observe(Committed(order, padded, counts, counts - 1))
            for slot, row in zip(order.tolist(), rows, strict=True):
                oracle.observe(slot, row)
            oracle.catch_up(CATCH_UP_TOKENS + sum(map(len, rows)))


def ask(proposer, oracle, budgets):
    """Propose for all slots in one batch; the oracle one after the other."""
    order = list(oracle.texts)
    roots = [oracle.texts[slot][-1] for slot in order]
    arrays = (np.array(each, dtype=np.int32) for each in (order, roots, budgets[: len(order)]))
    trees = proposer.propose(DraftBatch(*arrays))
    trees.check()
    for row, slot in enumerate(order):
        shown = (trees.tokens, trees.parents, trees.evidence)
        columns = [each[row, 1 : trees.num_nodes[row]].tolist() for each in shown]
        assert list(zip(*columns, strict=True)) == oracle.propose(slot, budgets[row])


def num_nodes_taken(store):
    state = store._state[0]
    count, node = int(state["num_nodes"]) - 1, int(state["first_free"])
    while node != NONE:
        count, node = count - 1, int(store.nodes[node]["next"])
    return count


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(2, 80),
    st.lists(events, max_size=14),
    st.lists(st.integers(1, 14), min_size=3),
    st.integers(0, 2**32 - 1),
)
def test_proposals_equal_brute_force_for_any_history(max_candidates, room, history, budgets, seed):
    """With chances drawn at random, so that no order of candidates comes from the table that is measured."""
    config = SpeculativeConfig("ngram")
    proposer = SuffixProposer(config, max_candidates=max_candidates, max_response_tokens=room)
    proposer.priors = np.random.default_rng(seed).choice(np.float32([0.2, 0.5, 0.7, 1.0]), 70)
    oracle = SuffixOracle(proposer.priors, max_candidates, room)
    for event in history:
        apply(event, proposer, oracle)
        ask(proposer, oracle, budgets)
        held = [each.tolist() for each in proposer.store.responses]
        assert held == [tokens for _, tokens in oracle.responses]
        assert proposer.store.num_tokens == sum(map(len, oracle.counted())) <= room
    runs = {run for text in oracle.counted() for run in runs_of(text)}
    assert num_nodes_taken(proposer.store) == len(runs)


def likeliest(store, context):
    """The first tokens after `context` as they are linked, with their counts."""
    node = ROOT
    for token in context:
        node = find_child(store.nodes, store.table, node, token)
    child, found = store.nodes[node]["first_child"], []
    while child != NONE and len(found) < RANKED:
        found.append((int(store.nodes[child]["token"]), int(store.nodes[child]["count"])))
        child = store.nodes[child]["next"]
    return found


after_zero = st.lists(st.integers(1, 9), min_size=1, max_size=5)
crowded = st.lists(
    after_zero.map(lambda others: [each for other in others for each in (0, other)]), min_size=5, max_size=25
)


@settings(max_examples=200, deadline=None)
@given(st.integers(8, 40), crowded, st.lists(st.integers(0, 20), min_size=1), st.integers(1, 20))
def test_the_likeliest_stay_in_order_while_responses_come_and_go(room, responses, used, pace):
    store, oracle = ResponseStore(room), SuffixOracle([], 1, room)
    for number, response in enumerate(responses):
        for each in (store, oracle):
            each.learn(response)
            each.catch_up(pace)
            each.use(used[number % len(used)])
        for context in [(0,), *((0, token, 0) for token in range(1, 10))]:
            if oracle.continuations(RESPONSES, 0, context)[1]:
                ranked, _ = oracle.continuations(RESPONSES, 0, context)
                assert likeliest(store, context) == ranked[:RANKED]


@settings(max_examples=100, deadline=None)
@given(texts, st.data())
def test_how_a_text_is_cut_into_rounds_changes_nothing(text, data):
    cuts = data.draw(st.lists(st.integers(1, len(text)), max_size=8).map(sorted))
    proposer = SuffixProposer(SpeculativeConfig("ngram"), max_candidates=12)
    oracle = SuffixOracle(proposer.priors, 12, 100)
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    apply(("admit", 0, pieces[0]), proposer, oracle)
    for piece in pieces[1:]:
        if piece:
            apply(("observe", [0], [piece]), proposer, oracle)
    ask(proposer, oracle, [ANY])
