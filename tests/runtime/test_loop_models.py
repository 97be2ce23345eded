"""Proposers that are models change no text: greedy decoding, seeded sampling, batches, stops, preemption, prefixes.

Each is compared with the plain engine's sequence of the same request alone.

Run: pytest tests/runtime/test_loop_models.py
"""

import numpy as np
import pytest
from support.draft_worlds import SPECULATION, random_world, speculative_config, table_world
from support.engines import build, come_and_go, finish, num_held, outputs, run, with_room

from tspec.core.sampling_params import SamplingParams
from tspec.runtime.sequence import FinishReason

VOCAB = 64
"""Tokens that both targets have."""

RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(0, VOCAB, length).tolist() for length in (1, 2, 7, 40, 63, 64, 65, 130)]
NOTHING = {"blocks": 0, "running": 0, "waiting": 0}
NUM_TOKENS = 24

SAMPLING = {
    "greedy": {"temperature": 0.0, "repetition_penalty": 1.2, "bad_words": [[5], [3, 9]], "logprobs": 2},
    "temperature": {"temperature": 1.7},
    "filters": {"temperature": 2.0, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "everything": {
        "temperature": 2.0,
        "top_k": 40,
        "top_p": 0.95,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {3: 2.5, 9: -1.0, 60: 0.5},
        "bad_words": [[5], [3, 9], [7, 7, 1]],
        "min_tokens": 4,
        "stop_token_ids": [11],
        "logprobs": 5,
    },
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds")
    worlds = {"random": random_world(folder / "random"), "table": table_world(folder / "table")}
    yield worlds
    for world in worlds.values():
        world.plain.close()


@pytest.fixture(scope="module", params=SPECULATION)
def case(request, worlds):
    """A world, and an engine of one of its drafts in which eight sequences may have whole trees."""
    world = worlds["table" if request.param.startswith("good") else "random"]
    built = build(world.folder, speculative_config(world, request.param))
    yield world, with_room(built)
    built.close()


@pytest.fixture
def world(case):
    return case[0]


@pytest.fixture
def engine(case):
    return case[1]


def outcomes(sequences):
    return [(each.output_ids, each.finish_reason, each.logprobs) for each in sequences]


def together(engine, *requests):
    """Sequences of (prompt, params), in one batch."""
    sequences = [engine.add(prompt, SamplingParams(**params)) for prompt, params in requests]
    finish(engine)
    return sequences


def test_eight_prompts_at_once_are_each_as_alone(world, engine):
    sequences = run(engine, *PROMPTS, max_tokens=NUM_TOKENS)
    assert outcomes(sequences) == outcomes(world.alone(prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS)
    assert sum(each.stats.num_candidates for each in sequences) > 8 * NUM_TOKENS / 2
    assert num_held(engine) == NOTHING


@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_prompt_alone(world, engine, number):
    prompt = PROMPTS[number]
    assert outputs(run(engine, prompt, max_tokens=40)) == [world.alone(prompt, max_tokens=40).output_ids]


def test_max_tokens_is_kept_to_the_token(world, engine):
    """Twelve requests for eight slots."""
    counts = range(1, 13)
    sequences = together(engine, *((PROMPTS[3], {"max_tokens": count}) for count in counts))
    whole = world.alone(PROMPTS[3], max_tokens=12).output_ids
    assert outputs(sequences) == [whole[:count] for count in counts]
    assert {each.finish_reason for each in sequences} == {FinishReason.LENGTH}
    for count, sequence in zip(
        counts, sequences, strict=True
    ):  # the prefill's token and the bonus token are none
        assert len(sequence.stats.candidates_by_position) <= max(count - 2, 0)


def test_the_context_ends_a_text_inside_a_round(world, engine):
    prompt = RANDOM.integers(0, VOCAB, engine.max_model_len - 9).tolist()
    (sequence,) = run(engine, prompt, max_tokens=50)
    assert outcomes([sequence]) == outcomes([world.alone(prompt, max_tokens=50)])
    assert len(sequence.output_ids) == 9


def test_a_stop_token_ends_a_text_wherever_it_comes(world, engine):
    plain = world.alone(PROMPTS[2], max_tokens=NUM_TOKENS).output_ids
    stops = [{"stop_token_ids": [token], "max_tokens": NUM_TOKENS} for token in plain[:8]]
    sequences = together(engine, *((PROMPTS[2], params) for params in stops))
    assert outcomes(sequences) == outcomes(world.alone(PROMPTS[2], **params) for params in stops)
    assert {each.finish_reason for each in sequences} == {FinishReason.STOP}


def test_requests_may_speculate_less_than_others_or_not_at_all(world, engine):
    asked = ["off", "auto", 1, 2, 0, 3, "auto", 5]
    requests = [
        (prompt, {"max_tokens": NUM_TOKENS, "speculative": each})
        for prompt, each in zip(PROMPTS, asked, strict=True)
    ]
    sequences = together(engine, *requests)
    assert outputs(sequences) == [world.alone(prompt, max_tokens=NUM_TOKENS).output_ids for prompt in PROMPTS]
    assert [each.stats.num_candidates for each in sequences if each.params.max_candidates == 0] == [0, 0]
    assert sequences[2].stats.num_candidates <= sequences[2].stats.num_passes


def test_sequences_that_give_way_go_on_as_if_nothing_had_happened(world, engine):
    """Three of them start in eight blocks, and each soon needs a third."""
    short = with_room(engine, num_blocks=8)
    prompts = [[number, *PROMPTS[7][:119]] for number in range(5)]
    sequences = run(short, *prompts, max_tokens=50)
    assert outputs(sequences) == [world.alone(prompt, max_tokens=50).output_ids for prompt in prompts]
    assert short.scheduler.num_preemptions > 0
    assert num_held(short) == NOTHING


@pytest.mark.parametrize("num_shared", [1, 63, 64, 65])
def test_texts_with_a_prefix_in_common_are_the_same_warm_and_cold(world, engine, num_shared):
    """A, B, A again, and a text that goes on from A's output; a draft's cache is there for whoever shares a block."""
    engine.scheduler.kv.forget()
    shared, rest = PROMPTS[7][:num_shared], [*PROMPTS[6][::-1], 1, 2, 3, 4, 5]
    first, second = shared + rest, [*shared, (rest[0] + 1) % VOCAB, *rest[1:]]
    third = first + world.alone(first, max_tokens=NUM_TOKENS).output_ids + [3]
    prompts = first, second, first, third
    cold, _, warm, longer = sequences = [run(engine, each, max_tokens=NUM_TOKENS)[0] for each in prompts]
    assert outputs(sequences) == [world.alone(each, max_tokens=NUM_TOKENS).output_ids for each in prompts]
    reused = [each.stats.num_reused for each in sequences]
    length = num_shared + len(rest)
    assert reused == [0, num_shared // 64 * 64, (length - 1) // 64 * 64, (length + NUM_TOKENS) // 64 * 64]
    engine.scheduler.kv.forget()
    (afresh,) = run(engine, third, max_tokens=NUM_TOKENS)
    for one, again in ((cold, warm), (afresh, longer)):
        assert again.stats.accepted_by_position == one.stats.accepted_by_position
        assert again.stats.candidates_by_position == one.stats.candidates_by_position


def test_requests_come_and_go_at_any_time(world, engine):
    """One joins each step, in an order of their own; some are dropped."""
    requests = [(PROMPTS[number], 5 + 4 * number) for number in RANDOM.permutation(len(PROMPTS)).tolist()]
    kept = come_and_go(engine, requests)
    assert outputs(kept) == [world.alone(prompt, max_tokens=most).output_ids for prompt, most in requests]
    assert num_held(engine) == NOTHING


def test_each_request_is_as_alone_beside_others_of_other_sampling(world, engine, request):
    """Seeds give the same text as without a proposer, but where drawn candidates are tested by ratio."""
    requests = [
        (prompt, params | {"max_tokens": NUM_TOKENS} | ({"seed": 8} if params["temperature"] > 0 else {}))
        for prompt, params in zip([*PROMPTS[:4], *PROMPTS[4:]], [*SAMPLING.values()] * 2, strict=True)
    ]
    sequences = together(engine, *requests)
    is_ratio = "ratio" in request.node.callspec.params["case"]
    for (prompt, params), sequence in zip(requests, sequences, strict=True):
        if is_ratio and params["temperature"] > 0:
            assert sequence.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
        else:
            assert outcomes([sequence]) == outcomes([world.alone(prompt, **params)])


def test_all_of_a_prompt_but_its_last_token_may_be_shared(world, engine):
    """Then the first round begins where other sequences' blocks end."""
    engine.scheduler.kv.forget()
    for _ in range(2):
        (sequence,) = run(engine, PROMPTS[6], max_tokens=NUM_TOKENS)
        assert outcomes([sequence]) == outcomes([world.alone(PROMPTS[6], max_tokens=NUM_TOKENS)])
    assert sequence.stats.num_reused == 64


def test_a_prompt_that_is_scored_leaves_its_last_token_to_a_round(world, engine):
    """Of a prompt of one token, a head knows nothing."""
    for number in (0, 1, 5):
        params = {"max_tokens": NUM_TOKENS, "prompt_logprobs": 1}
        run(engine, PROMPTS[number], max_tokens=NUM_TOKENS)
        (sequence,) = run(engine, PROMPTS[number], **params)
        assert outcomes([sequence]) == outcomes([world.alone(PROMPTS[number], **params)])
