"""A model that proposes is in step with the text, whatever has happened: it proposes what a fresh one would propose.

Histories are of accepted and refused candidates, requests that come and go, give way and share prefixes, and rounds in
which nothing is proposed. Equal means to the bit, also of the laws that candidates were drawn from.

Run: pytest tests/property/test_drafts_in_step.py
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draft_worlds import SPECULATION, VOCAB, random_world, speculative_config
from support.engines import build, finish, with_proposer
from support.shadow import Shadow, propose_afresh

from tspec.core.sampling_params import SamplingParams
from tspec.proposers.medusa import MedusaProposer

RANDOM = np.random.default_rng(6)
LONG = RANDOM.integers(0, VOCAB, 150).tolist()
PROMPTS = [LONG, LONG[:64], LONG[:65], [*LONG[:130], 3, 4], [7], LONG[100:], LONG[:128]]
PARAMS = [
    {"max_tokens": 60},
    {"max_tokens": 40, "temperature": 1.5, "seed": 3},
    {"max_tokens": 90, "speculative": 2},
    {"max_tokens": 20, "prompt_logprobs": 1, "speculative": "off"},
    {"max_tokens": 70, "stop_token_ids": list(range(10, 14))},
    {"max_tokens": 1},
]
MOST_BLOCKS = 7
"""What the longest request needs, a tree behind its text included."""

CHECKED = 12
"""Proposals of a history that are compared, the last ones among them."""

ADD = st.tuples(st.just("add"), st.integers(0, len(PROMPTS)), st.integers(0, len(PARAMS) - 1))
STEPS = st.tuples(st.just("steps"), st.integers(1, 12))
ABORT = st.tuples(st.just("abort"), st.integers(0, 5))
EVENTS = st.lists(st.one_of(ADD, ADD, STEPS, STEPS, STEPS, ABORT), min_size=3, max_size=24)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = random_world(tmp_path_factory.mktemp("random"))
    yield world
    world.plain.close()


@pytest.fixture(scope="module")
def prompts(world):
    """One of them goes on where another one's text ends."""
    return [*PROMPTS, [*LONG, *world.alone(LONG, **PARAMS[0]).output_ids, 5]]


@pytest.fixture(scope="module")
def texts(world, prompts):
    """What some requests say, for the random trees."""
    known = [*prompts[:5], prompts[-1]]
    return [prompt + world.alone(prompt, **params).output_ids for prompt in known for params in PARAMS[:2]]


@pytest.fixture(scope="module", params=[name for name in SPECULATION if not name.startswith("good")])
def pair(request, world):
    """Two engines of one draft."""
    config = speculative_config(world, request.param)
    engines = [build(world.folder, config) for _ in range(2)]
    yield engines
    for engine in engines:
        engine.close()


def shadowed(engine, texts, seed=0, *, num_blocks=None, node_budget=64, **options):
    """The engine with random trees in the place of its model's, which goes on beside them."""
    whole = engine.executor.num_blocks
    engine.executor.num_blocks = num_blocks or whole
    shadow = Shadow(engine.proposer, texts, seed, VOCAB)
    options = {"mixes_prompts": engine._mixes_prompts, "max_candidates": engine._max_candidates} | options
    try:
        return with_proposer(engine, shadow, node_budget=node_budget, **options)
    finally:
        engine.executor.num_blocks = whole


def live(engine, prompts, events):
    """Let requests come and go; returns what was proposed."""
    added = []
    for kind, *details in events:
        if kind == "add":
            prompt, params = details
            added.append(engine.add(prompts[prompt], SamplingParams(**PARAMS[params])))
        elif kind == "abort" and added:
            engine.abort(added[details[0] % len(added)])
        elif kind == "steps":
            for _ in range(details[0]):
                if engine.has_work:
                    engine.step()
                    check_caches(engine)
    finish(engine)
    assert {each.error for each in added} <= {None}
    return engine.proposer.proposals


def check_caches(engine):
    """No cache is ahead of the text."""
    engine.scheduler.check()
    model = engine.proposer.model
    for sequence in engine.scheduler.running:
        assert isinstance(model, MedusaProposer) or model.num_cached(sequence.slot) <= len(sequence.tokens)


def differences(fresh, texts, proposals):
    """Proposals that a fresh proposer would not have made."""
    single = shadowed(fresh, texts)
    return [each for each in proposals if propose_afresh(single, each) != each]


def some(proposals, seed):
    """A few of them, the last ones always."""
    chosen = np.random.default_rng(seed).permutation(len(proposals))[:CHECKED].tolist()
    return [proposals[number] for number in {*chosen, *range(max(0, len(proposals) - 3), len(proposals))}]


@settings(deadline=None, max_examples=6)
@given(
    events=EVENTS,
    num_blocks=st.integers(MOST_BLOCKS, 20),
    num_seqs=st.integers(1, 5),
    node_budget=st.sampled_from((3, 6, 12, 60)),
    seed=st.integers(0, 1 << 32),
)
def test_a_proposal_is_that_of_a_fresh_proposer(
    pair, prompts, texts, events, num_blocks, num_seqs, node_budget, seed
):
    engine, fresh = pair
    limits = {"num_blocks": num_blocks, "max_num_seqs": num_seqs, "node_budget": node_budget}
    proposals = live(shadowed(engine, texts, seed, **limits), prompts, events)
    assert differences(fresh, texts, some(proposals, seed)) == []


CROWD = [("add", 0, 0), ("add", 4, 2), ("steps", 9), ("add", 5, 1), ("steps", 9), ("abort", 1), ("add", 3, 0)]
SILENT = [("add", 0, 0), ("add", 0, 0), ("steps", 90), ("add", 7, 0)]
"""With a small budget, two requests get no candidates; then another one shares their blocks."""


def lets_others_share_what_it_lacks(shadow, engine):
    shadow.num_cached = lambda slot: 1 << 30


def reads_features_of_accepted_nodes_alone(shadow, engine):
    """Chunks of prompts go along in verify passes, which keep no more than those."""
    engine._mixes_prompts = True


def keeps_its_candidates(shadow, engine):
    """As if what a candidate wrote were right once it is accepted."""
    plain, cached = shadow.model.observe, shadow.model._cached

    def observe(committed):
        plain(committed)
        for slot, num_accepted in zip(committed.slots.tolist(), committed.num_accepted.tolist(), strict=True):
            cached[slot] += num_accepted

    shadow.model.observe = observe


def forgets_the_last_of_a_full_round(shadow, engine):
    plain = shadow.model.observe

    def observe(committed):
        plain(committed)
        for slot, num_accepted in zip(committed.slots.tolist(), committed.num_accepted.tolist(), strict=True):
            shadow.model._cached[slot] += num_accepted > 1

    shadow.model.observe = observe


def reads_others_as_its_own(shadow, engine):
    """Its blocks are those of the row before it."""
    plain = shadow.model.propose

    def propose(batch):
        table = np.roll(batch.caches.block_table, 1, axis=0)
        return plain(replace(batch, caches=replace(batch.caches, block_table=table)))

    shadow.model.propose = propose


FAULTS = {
    lets_others_share_what_it_lacks: (SILENT, 3),
    reads_features_of_accepted_nodes_alone: (CROWD, 60),
    keeps_its_candidates: (CROWD, 60),
    forgets_the_last_of_a_full_round: (CROWD, 60),
    reads_others_as_its_own: (CROWD, 60),
}
"""What is broken, and the history and node budget in which it shows."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(world, prompts, texts, fault):
    config = speculative_config(world, "eagle3, tree")
    history, node_budget = FAULTS[fault]
    engine, fresh = (build(world.folder, config) for _ in range(2))
    try:
        for is_broken in (False, True):
            strange = shadowed(engine, texts, node_budget=node_budget)
            if is_broken:
                fault(strange.proposer, strange)
            proposals = live(strange, prompts, history)
            assert bool(differences(fresh, texts, proposals[-40:])) == is_broken
    finally:
        engine.close()
        fresh.close()
