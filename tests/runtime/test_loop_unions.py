"""Lookups and unions change no text: greedy decoding, seeded sampling, batches, preemption, shared prefixes.

Each is compared with the plain engine's sequence of the same request alone. What "auto" decides depends on how fast
the machine is, so that only texts are compared there.

Run: pytest tests/runtime/test_loop_unions.py
"""

from dataclasses import replace

import numpy as np
import pytest
from support.draft_worlds import BY_RATIO, COUPLED, random_world
from support.engines import build, come_and_go, finish, num_held, outputs, run, with_room

from tspec.core.sampling_params import SamplingParams
from tspec.proposers.suffix import SuffixProposer

VOCAB, NUM_TOKENS = 128, 24
RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(0, VOCAB, length).tolist() for length in (1, 7, 40, 64)] + [
    RANDOM.integers(0, VOCAB, period).tolist() * (length // period)
    for period, length in ((3, 30), (5, 60), (20, 120), (1, 130))
]
"""Half of them repeat."""
NOTHING = {"blocks": 0, "running": 0, "waiting": 0}

CASES = {
    "suffix": {"method": "suffix", "num_speculative_tokens": 7},
    "union": {"method": "union", "num_speculative_tokens": 12},
    "auto": {"method": "auto"},
    "union, draft model": {"method": "union", "num_speculative_tokens": 12, "model": "noisy"},
    "union, eagle3 tree": {
        "method": "union",
        "num_speculative_tokens": 12,
        "model": "eagle3",
        "draft_top_k": 3,
        "draft_depth": 3,
    },
    "union, medusa": {"method": "union", "num_speculative_tokens": 9, "model": "medusa"},
    "auto, draft model": {"method": "auto", "model": "noisy"},
    "auto, eagle1": {"method": "auto", "model": "eagle1"},
    "union, coupled draft model": {"method": "union", "model": "noisy", **COUPLED},
    "union, draft model by ratio": {"method": "union", "model": "noisy", **BY_RATIO},
    "auto, eagle3 by ratio": {"method": "auto", "model": "eagle3", **BY_RATIO},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = random_world(tmp_path_factory.mktemp("unions"))
    yield world
    world.plain.close()


@pytest.fixture(scope="module", params=CASES)
def case(request, world):
    """A case's name, and an engine in which eight sequences may have whole trees."""
    asked = dict(CASES[request.param])
    if "model" in asked:
        asked["model"] = world.draft_folders[asked["model"]]
    built = build(world.folder, asked)
    yield request.param, with_room(built)
    built.close()


@pytest.fixture
def engine(case):
    return case[1]


def texts_alone(world, prompts, **params):
    return [world.alone(prompt, **params).output_ids for prompt in prompts]


def test_eight_prompts_at_once_are_each_as_alone(world, case):
    name, engine = case
    sequences = run(engine, *PROMPTS, max_tokens=NUM_TOKENS)
    assert outputs(sequences) == texts_alone(world, PROMPTS, max_tokens=NUM_TOKENS)
    if not name.startswith("auto"):
        assert sum(each.stats.num_accepted for each in sequences) > 5
    assert num_held(engine) == NOTHING


@pytest.mark.parametrize("number", [1, 6])
def test_a_prompt_alone(world, engine, number):
    sequences = run(engine, PROMPTS[number], max_tokens=50)
    assert outputs(sequences) == texts_alone(world, [PROMPTS[number]], max_tokens=50)


def test_a_seed_gives_its_text_unless_draws_are_tested_by_ratio(world, case):
    name, engine = case
    kinds = [
        {"temperature": 0.0, "repetition_penalty": 1.2},
        {"temperature": 0.7, "seed": 8},
        {"temperature": 1.5, "seed": 9, "top_k": 30, "top_p": 0.95},
        {"temperature": 1.0, "seed": 3, "bad_words": [[5], [3, 9]], "logprobs": 2},
    ] * 2
    sequences = [
        engine.add(prompt, SamplingParams(max_tokens=NUM_TOKENS, **params))
        for prompt, params in zip(PROMPTS, kinds, strict=True)
    ]
    finish(engine)
    for prompt, params, sequence in zip(PROMPTS, kinds, sequences, strict=True):
        alone = world.alone(prompt, max_tokens=NUM_TOKENS, **params)
        if "ratio" in name and params["temperature"] > 0:
            assert (sequence.error, len(sequence.output_ids)) == (None, NUM_TOKENS)
        else:
            assert sequence.output_ids == alone.output_ids
            assert sequence.logprobs == alone.logprobs


def test_sequences_that_give_way_go_on_as_if_nothing_had_happened(world, engine):
    """Three of them start in eight blocks, and each soon needs a third."""
    short = with_room(engine, num_blocks=8)
    prompts = [[number, *PROMPTS[6][:119]] for number in range(5)]
    sequences = run(short, *prompts, max_tokens=50)
    assert outputs(sequences) == texts_alone(world, prompts, max_tokens=50)
    assert short.scheduler.num_preemptions > 0
    assert num_held(short) == NOTHING


def test_texts_with_a_prefix_in_common_are_as_alone(world, engine):
    """One after the other, so that blocks of the first ones are found: A, B, A, and what goes on from A's output."""
    engine.scheduler.kv.forget()
    first, second = PROMPTS[7], [*PROMPTS[7][:70], *PROMPTS[2]]
    third = first + world.alone(first, max_tokens=NUM_TOKENS).output_ids + [3]
    prompts = [first, second, first, third]
    sequences = [run(engine, prompt, max_tokens=NUM_TOKENS)[0] for prompt in prompts]
    assert outputs(sequences) == texts_alone(world, prompts, max_tokens=NUM_TOKENS)
    assert [each.stats.num_reused > 0 for each in sequences] == [False, True, True, True]


def test_requests_come_and_go_at_any_time(world, engine):
    requests = [(prompt, 5 + 4 * number) for number, prompt in enumerate(PROMPTS)]
    kept = come_and_go(engine, requests)
    assert outputs(kept) == [world.alone(prompt, max_tokens=most).output_ids for prompt, most in requests]
    assert num_held(engine) == NOTHING


def test_tallies_are_what_sequences_count(world, case):
    """Those of several sources once for each, and every accepted one saved once."""
    name, engine = case
    if name == "suffix":
        assert engine.metrics().sources == {}
        return
    before = engine.metrics().sources
    sequences = run(engine, *PROMPTS, max_tokens=NUM_TOKENS)
    tallies = [each.since(before[name]) for name, each in engine.metrics().sources.items()]
    stats = [each.stats for each in sequences]
    num_accepted, num_candidates = (
        sum(getattr(each, name) for each in stats) for name in ("num_accepted", "num_candidates")
    )
    assert sum(each.num_saved for each in tallies) == pytest.approx(num_accepted)
    assert max(each.num_candidates for each in tallies) <= num_candidates
    assert sum(each.num_candidates for each in tallies) >= num_candidates
    assert all(each.num_accepted >= each.num_saved - 1e-9 for each in tallies)
    assert all(each.seconds > 0 or each.num_trees == 0 for each in tallies)


def test_lookups_that_are_asked_seldom_know_the_texts_all_the_same(world, monkeypatch):
    """As if asking took an hour: each is asked every eighth round, and told what came in between."""
    known = []

    def release(self, slot):
        if slot in self._texts:
            known.append(self._texts[slot].tokens.tolist())
        plain_release(self, slot)

    plain_release = SuffixProposer.release
    monkeypatch.setattr(SuffixProposer, "release", release)
    engine = build(world.folder, CASES["auto"])
    union = engine.proposer
    union._costs = replace(union._costs, ask_s=3600.0)
    sequences = run(engine, *PROMPTS, max_tokens=NUM_TOKENS)
    engine.close()
    num_asked = union.tallies()["suffix"].num_trees
    assert num_asked < sum(sequence.stats.num_passes for sequence in sequences) / 2
    assert sorted(known[-len(sequences) :]) == sorted(sequence.tokens for sequence in sequences)
