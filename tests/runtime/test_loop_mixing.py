"""Prompts that go along in the passes of sequences that decode: in one pass, and without a trace in any text.

Run: pytest tests/runtime/test_loop_mixing.py
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import NGRAM, RandomTrees, TestProposer, build, finish, num_held, run, with_proposer
from support.tiny_models import tiny_checkpoint

from tspec.core.sampling_params import SamplingParams
from tspec.core.shapes import BLOCK_TOKENS
from tspec.core.tree import MAX_NODES
from tspec.runtime.rounds import prompt_tokens_beside
from tspec.runtime.text import OutputText

VOCAB = 61
RANDOM = np.random.default_rng(7)
LONG = RANDOM.integers(0, VOCAB, 150).tolist()
REPEATS = (RANDOM.integers(0, VOCAB, 9).tolist() * 9)[:75]
PROMPTS = [[7], REPEATS, LONG[:65], [4], LONG, LONG[:64], [3, 4], [*LONG[:130], 5]]
"""The first decodes while the others come. Some share blocks, some have nothing to prefill but their root."""

EDITS = {
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.3,
    "logit_bias": {3: 2.5},
    "bad_words": [[5], [3, 9]],
    "min_tokens": 4,
}
WAYS = {
    "greedy": {},
    "seeded": {"temperature": 1.7, "seed": 12},
    "filters": {"temperature": 2.0, "seed": 12, "top_k": 20, "top_p": 0.9, "logprobs": 3},
    "edits": {"temperature": 1.5, "seed": 12, "logprobs": 0, **EDITS},
    "scored": {"temperature": 1.5, "seed": 12, "prompt_logprobs": 2},
    "stops": {"temperature": 1.7, "seed": 12, "stop": "to be chosen"},
}
MAX_TOKENS = 60
NOTHING = {"blocks": 0, "running": 0, "waiting": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    tiny_checkpoint(folder, "llama", hidden=48, heads=6, kv_heads=2, vocab=VOCAB)
    return folder


@pytest.fixture(scope="module")
def plain(folder):
    engine = build(folder, max_model_len=256)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def ngram(folder):
    engine = build(folder, NGRAM, max_model_len=256)
    yield engine
    engine.close()


def decode(ids):
    return "".join(chr(200 + token) for token in ids)


def add(engine, prompt, **params):
    asked = SamplingParams(**{"max_tokens": MAX_TOKENS} | params)
    text = OutputText(decode, stops=asked.stop, min_tokens=asked.min_tokens) if asked.stop else None
    return engine.add(prompt, asked, text=text)


def outcome(sequence):
    text = None if sequence.text is None else sequence.text.text
    ended = sequence.finish_reason, sequence.stop_reason, text
    return sequence.output_ids, ended, sequence.logprobs, sequence.prompt_logprobs


@pytest.fixture(scope="module", params=WAYS)
def way(request, plain):
    params = WAYS[request.param]
    if "stop" in params:  # what one of the texts says, across two tokens
        (sequence,) = run(plain, PROMPTS[1], max_tokens=MAX_TOKENS, **params | {"stop": ()})
        params = params | {"stop": decode(sequence.output_ids[24:26])}
    return params


@pytest.fixture(scope="module")
def alone(plain, way):
    """What each prompt comes to alone, without speculation."""
    engine = with_proposer(plain, TestProposer(), max_candidates=0)
    found = []
    for prompt in PROMPTS:
        found.append(add(engine, prompt, **way))
        finish(engine)
    return [outcome(each) for each in found]


def come_and_finish(engine, way):
    """Sequences of which each comes some steps after the one before it, while that one decodes."""
    sequences = [add(engine, PROMPTS[0], **way)]
    engine.step()
    for prompt in PROMPTS[1:]:
        sequences.append(add(engine, prompt, **way))
        for _ in range(3):
            engine.step()
            engine.scheduler.check()
    finish(engine)
    assert num_held(engine) == NOTHING
    return sequences


def test_texts_are_those_that_prompts_have_alone(plain, way, alone):
    engine = with_proposer(plain, TestProposer(), max_candidates=0, node_budget=8)
    sequences = come_and_finish(engine, way)
    assert [outcome(each) for each in sequences] == alone
    gone_along = [each for each in sequences if each.stats.num_from_prefill == 0]
    assert gone_along == sequences if "prompt_logprobs" in way else sequences[1:]


def test_texts_are_the_same_with_ngram(ngram, way, alone):
    sequences = come_and_finish(ngram, way)
    assert [outcome(each) for each in sequences] == alone


@pytest.mark.parametrize("tree_seed", range(3))
def test_texts_are_the_same_with_random_trees(plain, way, alone, tree_seed):
    """With siblings, and with right candidates now and then, beside chunks of 4 to 12 tokens."""
    known = [prompt + found[0] for prompt, found in zip(PROMPTS, alone, strict=True)]
    proposer = RandomTrees(known, tree_seed, VOCAB)
    engine = with_proposer(plain, proposer, max_candidates=12, node_budget=16)
    sequences = come_and_finish(engine, way)
    assert [outcome(each) for each in sequences] == alone
    assert sum(each.stats.num_accepted for each in sequences) > 0


def decoding_engine(plain, *, num_decoding=1, **options):
    """An engine in which so many sequences decode for a long time."""
    options = {"max_candidates": 0, "node_budget": 8} | options
    engine = with_proposer(plain, TestProposer(), max_num_seqs=num_decoding + 4, **options)
    decoding = [add(engine, [token], max_tokens=200) for token in range(num_decoding)]
    engine.step()
    return engine, decoding


def step(engine):
    """What passes a step runs, and how many nodes of prompts are in them."""
    before = engine.metrics()
    engine.step()
    since = engine.metrics().since(before)
    return {name: count for name, count in since.passes.items() if count}, since.num_prefilled


@pytest.mark.parametrize("num_decoding", [1, 3, 12])
def test_a_step_beside_decoding_is_one_pass_in_which_prompts_get_on(plain, num_decoding):
    engine, decoding = decoding_engine(plain, num_decoding=num_decoding)
    newcomers = [add(engine, prompt, max_tokens=5) for prompt in (LONG, REPEATS, [3, 4])]
    left = len(LONG) + len(REPEATS) + 2 - 3  # the last token of each is a root
    while any(each.num_output == 0 for each in newcomers):
        lengths = [each.num_output for each in decoding]
        now = engine.scheduler.decoding()
        waiting = sum(each not in now for each in newcomers)
        budget = prompt_tokens_beside(len(now), 8, len(now), waiting)
        passes, num_prefilled = step(engine)
        ((name, count),) = passes.items()
        assert (name.split()[0], count) == ("all", 1)
        assert num_prefilled == min(budget, left)
        left -= num_prefilled
        assert [each.num_output for each in decoding] == [length + 1 for length in lengths]
    assert left == 0


def test_the_smallest_budget_lets_a_prompt_get_on(plain):
    engine, _ = decoding_engine(plain, node_budget=1)
    newcomer = add(engine, REPEATS, max_tokens=3)
    for place in range(1, len(REPEATS)):
        assert step(engine) == ({"all 2x1": 1}, 1)
        assert newcomer.prefix_len == place
    assert newcomer.num_output == 0
    assert step(engine) == ({"all 2x1": 1}, 0)
    assert newcomer.num_output == 1


def test_a_prompt_without_anything_to_prefill_decodes_at_once(plain):
    engine, _ = decoding_engine(plain)
    newcomer = add(engine, [9], max_tokens=3)
    assert step(engine) == ({"all 2x1": 1}, 0)
    assert newcomer.num_output == 1


def test_a_scored_prompt_has_a_pass_of_its_own(plain):
    engine, (decoding, *_) = decoding_engine(plain)
    newcomer = add(engine, REPEATS[:6], max_tokens=3, prompt_logprobs=1)
    assert step(engine) == ({"prompt 1x8": 1, "all 2x1": 1}, 5)
    assert (newcomer.num_output, decoding.num_output) == (1, 3)


def test_where_prompts_do_not_mix_a_step_runs_two_passes(plain):
    engine, _ = decoding_engine(plain, mixes_prompts=False)
    newcomer = add(engine, LONG[:20], max_tokens=3)
    assert step(engine) == ({"none 1x16": 1, "all 1x1": 1}, 16)
    assert step(engine) == ({"last 1x4": 1, "all 2x1": 1}, 4)
    assert (newcomer.num_output, newcomer.stats.num_from_prefill) == (2, 1)
    finish(engine)
    assert newcomer.output_ids == run(plain, LONG[:20], max_tokens=3)[0].output_ids


def test_where_the_last_one_that_decodes_ends_prompts_go_on_alone(plain):
    engine, (decoding,) = decoding_engine(plain)
    newcomer = add(engine, LONG, max_tokens=4)
    step(engine)
    engine.abort(decoding)
    assert step(engine) == ({"none 1x64": 1}, 64)
    finish(engine)
    assert newcomer.stats.num_from_prefill == 1
    assert newcomer.output_ids == run(plain, LONG, max_tokens=4)[0].output_ids


def test_counts_of_a_prompt_that_went_along(plain):
    """Its last token is the root of a tree: no pass belongs to prefill alone, and each token to a tree."""
    engine, (decoding,) = decoding_engine(plain)
    newcomer = add(engine, REPEATS, max_tokens=5)
    while newcomer.finish_reason is None:
        engine.step()
    stats = newcomer.stats
    assert (stats.num_prefilled, stats.num_reused, stats.num_from_prefill) == (len(REPEATS) - 1, 0, 0)
    assert (stats.num_passes, stats.num_emitted, stats.tokens_per_pass) == (5, 5, 1)
    assert stats.queue_s < stats.time_to_first_token_s < stats.e2e_s
    metrics = engine.metrics()
    assert metrics.num_prompt_tokens == len(REPEATS) + 1
    assert (metrics.num_prefilled, metrics.num_from_prefill) == (len(REPEATS), 1)  # of the first sequence
    assert metrics.num_emitted - metrics.num_from_prefill == metrics.num_trees
    assert metrics.time_to_first_token_s.count == 2
    assert decoding.num_output == 1 + metrics.num_trees - 5


def test_prefixes_are_shared_while_prompts_go_along(plain):
    """Of two that came together, the second waits for the blocks of the first; a third finds them later."""
    engine, _ = decoding_engine(plain)
    newcomers = [add(engine, [*LONG[:130], token], max_tokens=9) for token in (1, 2)]
    while any(each.num_output == 0 for each in newcomers):
        engine.step()
        engine.scheduler.check()
    newcomers.append(add(engine, [*LONG[:128], 3], max_tokens=9))
    assert step(engine)[1] == 0
    assert newcomers[2].num_output == 1
    while any(each.finish_reason is None for each in newcomers):
        engine.step()
    counts = [(each.stats.num_prefilled, each.stats.num_reused) for each in newcomers]
    assert counts == [(130, 0), (2, 128), (0, 128)]
    alone = [run(plain, [*LONG[:130], 1], max_tokens=9), run(plain, [*LONG[:130], 2], max_tokens=9)]
    assert [each.output_ids for each in newcomers[:2]] == [each.output_ids for (each,) in alone]


def short_of_blocks(plain, num_blocks):
    """An engine in whose passes one token of a prompt goes along."""
    whole, plain.executor.num_blocks = plain.executor.num_blocks, num_blocks
    try:
        return with_proposer(plain, TestProposer(), max_candidates=0, node_budget=1)
    finally:
        plain.executor.num_blocks = whole


SAMPLED = {"max_tokens": 200, "temperature": 1.7, "seed": 3}


def test_a_prompt_that_goes_along_gives_way_and_comes_again(plain):
    """Memory for seven blocks. Two that decode take their third ones while a prompt before its third has two."""
    prompts = [[7], [8], LONG[:140]]
    expected = [run(plain, prompt, **SAMPLED)[0].output_ids for prompt in prompts]
    engine = short_of_blocks(plain, 7)
    sequences = [add(engine, prompt, **SAMPLED) for prompt in prompts[:2]]
    while sequences[0].num_output < 60:
        engine.step()
    sequences.append(newcomer := add(engine, prompts[2], **SAMPLED))
    while newcomer.stats.num_preemptions == 0:
        passes, num_prefilled = step(engine)
        assert newcomer.num_output == 0
    assert (passes, num_prefilled) == ({"all 2x1": 1}, 0)  # it had its slot, and lost it to one before it
    assert newcomer.stats.num_prefilled > 64
    finish(engine)
    assert [each.output_ids for each in sequences] == expected


@pytest.mark.parametrize(("start", "length"), [(55, 140), (100, 100)], ids=["for the prompt", "for itself"])
def test_one_that_decodes_gives_way_to_a_prompt_of_a_higher_priority(plain, start, length):
    """When one of the two needs a block and there is none: the prompt then goes on alone in that step."""
    prompts = [[7], LONG[:length]]
    expected = [run(plain, prompt, **SAMPLED)[0].output_ids for prompt in prompts]
    engine = short_of_blocks(plain, 5)
    decoding = engine.add(prompts[0], SamplingParams(**SAMPLED), priority=1)
    while decoding.num_output < start:
        engine.step()
    newcomer = engine.add(prompts[1], SamplingParams(**SAMPLED))
    while decoding.stats.num_preemptions == 0:
        passes, num_prefilled = step(engine)
        assert (num_prefilled, newcomer.num_output) == (1, 0)
    assert passes == {"none 1x1": 1}
    finish(engine)
    assert [decoding.output_ids, newcomer.output_ids] == expected


class Following(TestProposer):
    """Has a cache of its own, of which it only notes how far it goes."""

    num_slots = 3

    def __init__(self) -> None:
        super().__init__()
        self.cached: dict[int, int] = {}
        self.followed: list[dict[int, int]] = []

    def admit(self, slot, prompt):
        super().admit(slot, prompt)
        self.cached[slot] = 0

    def follow(self, rows):
        self.followed.append(dict(zip(rows.slots.tolist(), rows.ends.tolist(), strict=True)))
        for slot, end, blocks in zip(rows.slots.tolist(), rows.ends.tolist(), rows.block_table, strict=True):
            assert self.cached[slot] < end <= len(blocks) * BLOCK_TOKENS
            self.cached[slot] = end

    def num_cached(self, slot):
        return self.cached[slot]


def test_the_cache_of_a_proposer_follows_each_chunk_before_its_blocks_are_known(plain):
    proposer = Following()
    engine = with_proposer(plain, proposer, max_candidates=0, node_budget=8)
    add(engine, [7], max_tokens=200)
    engine.step()
    newcomer = add(engine, LONG, max_tokens=3)
    while newcomer.num_output == 0:
        num_followed = len(proposer.followed)
        _, num_prefilled = step(engine)
        assert newcomer.table.num_known == newcomer.prefix_len // BLOCK_TOKENS
        chunks = [{newcomer.slot: newcomer.prefix_len}] if num_prefilled else []
        assert proposer.followed[num_followed:] == chunks
    assert proposer.cached[newcomer.slot] == len(LONG) - 1


@given(num_nodes=st.integers(1, 200), node_budget=st.integers(1, 64))
def test_prompts_make_a_pass_seven_fourths_as_large_at_most_or_fill_it_up(num_nodes, node_budget):
    tokens = prompt_tokens_beside(num_nodes, node_budget, num_decoding=1, num_prefilling=1)
    assert tokens >= 1
    assert 4 * (num_nodes + tokens) <= max(4 * node_budget, 7 * num_nodes) or tokens == 1


def test_a_whole_chunk_goes_along_where_more_wait_than_decode():
    assert prompt_tokens_beside(3, 8, num_decoding=3, num_prefilling=3) == 5
    assert prompt_tokens_beside(3, 8, num_decoding=3, num_prefilling=4) == MAX_NODES


@given(num_decoding=st.integers(1, 40), slope=st.floats(0.0, 0.2))
def test_known_times_let_prompts_fill_a_pass_up_to_what_it_may_take(num_decoding, slope):
    node_s = 1.0 + slope * np.arange(256)
    tokens = prompt_tokens_beside(num_decoding, 1, num_decoding, 1, node_s)
    least = prompt_tokens_beside(num_decoding, 1, num_decoding, 1)
    assert least <= tokens <= 64
    assert tokens == least or node_s[num_decoding + tokens] < 1.75 * node_s[num_decoding] * (1 + 1e-9)
    is_full = node_s[num_decoding + tokens + 1] >= 1.75 * node_s[num_decoding] * (1 - 1e-9)
    assert is_full or tokens == 64
