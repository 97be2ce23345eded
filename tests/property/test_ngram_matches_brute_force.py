"""N-gram proposals equal those of a search through the whole text, whatever happened to the slots before.

Run: python -m pytest tests/property/test_ngram_matches_brute_force.py
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspec.core.proposer import Committed, DraftBatch
from tspec.core.speculative_config import SpeculativeConfig
from tspec.proposers import ngram
from tspec.proposers.ngram import NgramProposer

NUM_SLOTS = 3

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=25)
slots = st.integers(0, NUM_SLOTS - 1)
events = st.one_of(
    st.tuples(st.just("admit"), slots, tokens),
    st.tuples(
        st.just("observe"), st.permutations(range(NUM_SLOTS)), st.lists(tokens, min_size=1, max_size=3)
    ),
    st.tuples(st.just("release"), slots),
)


@st.composite
def configs(draw):
    shortest = draw(st.integers(1, 4))
    longest = draw(st.integers(shortest, 6))
    return SpeculativeConfig(
        num_speculative_tokens=draw(st.integers(1, 12)),
        prompt_lookup_min=shortest,
        prompt_lookup_max=longest,
        occurrence=draw(st.sampled_from(["latest", "earliest"])),
    )


@pytest.fixture(autouse=True, scope="module")
def small_texts():
    """Let texts of a few tokens outgrow their memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram, "MIN_CAPACITY_TOKENS", 4)
        yield


def expected_candidates(text, config, grows_with_match, max_nodes):
    """What the proposer promises, in the most obvious way."""
    for match in range(min(config.prompt_lookup_max, len(text) - 1), config.prompt_lookup_min - 1, -1):
        starts = [start for start in range(len(text) - match) if text[start : start + match] == text[-match:]]
        if starts:
            after = (max if config.occurrence == "latest" else min)(starts) + match
            most = min(config.num_speculative_tokens, max_nodes - 1)
            count = min(most, 2 * match - 1) if grows_with_match else most
            continued = list(text)
            for source in range(after, after + count):
                continued.append(continued[source])
            return continued[len(text) :]
    return []


def apply(event, proposer, texts):
    """Do the same to the proposer and to the plain texts."""
    match event:
        case ("admit", slot, prompt):
            proposer.admit(slot, np.array(prompt, dtype=np.int32))
            texts[slot] = list(prompt)
        case ("release", slot):
            proposer.release(slot)
            texts.pop(slot, None)
        case ("observe", order, rows):
            width = max(map(len, rows))
            padded = np.array([[*row, *[9] * (width - len(row))] for row in rows], dtype=np.int32)
            counts = np.array([len(row) for row in rows], dtype=np.int32)
            proposer.observe(
                Committed(np.array(order[: len(rows)], dtype=np.int32), padded, counts, counts - 1)
            )
            for slot, row in zip(order, rows, strict=False):
                if slot in texts:
                    texts[slot] += row


@settings(max_examples=300, deadline=None)
@given(configs(), st.booleans(), st.lists(events, max_size=12), st.lists(st.integers(1, 14), min_size=3))
def test_proposals_equal_brute_force_for_any_history(config, grows_with_match, history, budgets):
    proposer, texts = NgramProposer(config, grows_with_match=grows_with_match), {}
    for event in history:
        apply(event, proposer, texts)
        order = list(texts)
        roots = [texts[slot][-1] for slot in order]
        arrays = (np.array(each, dtype=np.int32) for each in (order, roots, budgets[: len(order)]))
        trees = proposer.propose(DraftBatch(*arrays))
        trees.check()
        for row, slot in enumerate(order):
            found = trees.tokens[row, : trees.num_nodes[row]].tolist()
            promised = expected_candidates(texts[slot], config, grows_with_match, budgets[row])
            assert found == [texts[slot][-1], *promised]


@settings(max_examples=200, deadline=None)
@given(configs(), st.lists(st.integers(0, 2), min_size=1, max_size=80), st.data())
def test_how_a_text_is_cut_into_rounds_changes_nothing(config, text, data):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    proposer, texts = NgramProposer(config), {}
    apply(("admit", 0, pieces[0]), proposer, texts)
    for piece in pieces[1:]:
        apply(("observe", [0], [piece]), proposer, texts)
    batch = DraftBatch(*(np.array([each], dtype=np.int32) for each in (0, text[-1], 64)))
    trees = proposer.propose(batch)
    assert trees.tokens[0, 1 : trees.num_nodes[0]].tolist() == expected_candidates(text, config, True, 64)
