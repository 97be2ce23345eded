"""Requests that come, go, are dropped and give way at random: each text is the one it has alone, and nothing leaks.

Run: pytest tests/property/test_engine_machine.py
"""

import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.engines import RandomTrees, TestProposer, build, finish, run, with_proposer
from support.tiny_models import tiny_checkpoint

from tspec.core.sampling_params import SamplingParams
from tspec.runtime.sequence import FinishReason

VOCAB = 61
RANDOM = np.random.default_rng(5)
LONG = RANDOM.integers(0, VOCAB, 150).tolist()
PROMPTS = [LONG, LONG[:64], LONG[:65], [*LONG[:130], 3, 4], [7], LONG[100:], LONG[:128], [5] * 40]
PARAMS = [
    {"max_tokens": 40},
    {"max_tokens": 90, "temperature": 1.5, "seed": 3},
    {"max_tokens": 1},
    {"max_tokens": 30, "temperature": 1.2, "seed": 4, "top_p": 0.9, "logprobs": 2},
    {"max_tokens": 50, "repetition_penalty": 1.3, "bad_words": [[5], [3, 9]], "min_tokens": 3},
    {"max_tokens": 20, "prompt_logprobs": 1, "speculative": "off"},
    {"max_tokens": 70, "speculative": 2, "stop_token_ids": [11, 12, 13]},
]
MOST_BLOCKS = 5
"""What the longest request needs: 150 tokens of prompt and 90 of output, less the last."""

CASES = st.tuples(st.integers(0, len(PROMPTS) - 1), st.integers(0, len(PARAMS) - 1))


@functools.cache
def world():
    """One engine's weights and memory for all runs, and the texts that requests have alone."""
    folder = Path(tempfile.mkdtemp())
    tiny_checkpoint(folder, "llama", hidden=48, heads=6, kv_heads=2, vocab=VOCAB)
    engine = build(folder, max_num_seqs=8)
    shutil.rmtree(folder)
    return engine, {}


def outcome(sequence):
    return sequence.output_ids, sequence.finish_reason, sequence.logprobs, sequence.prompt_logprobs


def alone(case):
    engine, known = world()
    if case not in known:
        prompt, params = PROMPTS[case[0]], PARAMS[case[1]]
        single = with_proposer(engine, TestProposer(), max_candidates=0)
        known[case] = outcome(run(single, prompt, **params)[0])
    return known[case]


class EngineMachine(RuleBasedStateMachine):
    """Drives an engine with a third of the memory that its requests would like to have."""

    @initialize(
        num_blocks=st.integers(MOST_BLOCKS, 14),
        num_seqs=st.integers(1, 6),
        seed=st.integers(0, 1 << 32),
        mixes_prompts=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_blocks, num_seqs, seed, mixes_prompts):
        engine, _ = world()
        texts = [PROMPTS[prompt] + alone((prompt, params))[0] for prompt in (0, 4) for params in (0, 1)]
        whole = engine.executor.num_blocks
        engine.executor.num_blocks = num_blocks
        try:
            proposer = RandomTrees(texts, seed, VOCAB)
            options = {"max_candidates": 9, "max_num_seqs": num_seqs, "node_budget": 12}
            self.engine = with_proposer(engine, proposer, mixes_prompts=mixes_prompts, **options)
        finally:
            engine.executor.num_blocks = whole
        self.open = []
        self.dropped = []

    @rule(cases=st.lists(CASES, min_size=1, max_size=3), priority=st.integers(0, 1))
    def add(self, cases, priority):
        for case in cases:
            self.submit(case, priority)

    def submit(self, case, priority):
        params = SamplingParams(**PARAMS[case[1]])
        self.open.append((case, self.engine.add(PROMPTS[case[0]], params, priority=priority)))

    @rule(count=st.integers(1, 12))
    def steps(self, count):
        for _ in range(count):
            if self.engine.has_work:
                self.engine.step()
                self.engine.scheduler.check()

    @rule(choice=st.randoms(use_true_random=False))
    def abort(self, choice):
        if self.open:
            case, sequence = choice.choice(self.open)
            self.engine.abort(sequence)
            if sequence.finish_reason is FinishReason.ABORT:
                self.open.remove((case, sequence))
                self.dropped.append(sequence)

    @invariant()
    def nothing_leaks(self):
        if hasattr(self, "engine"):
            self.engine.scheduler.check(self.dropped)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        finish(self.engine)
        for case, sequence in self.open:
            assert outcome(sequence) == world()[1][case], case
        scheduler = self.engine.scheduler
        scheduler.check(self.dropped)
        assert (scheduler.kv.num_free, scheduler.running) == (scheduler.kv.num_blocks, [])


@pytest.fixture(scope="module", autouse=True)
def all_known():
    """The texts that the machine compares with, before it uses the memory for itself."""
    for case in ((prompt, params) for prompt in range(len(PROMPTS)) for params in range(len(PARAMS))):
        alone(case)
    yield
    world()[0].close()


def test_each_text_is_the_one_it_has_alone_and_nothing_leaks():
    run_state_machine_as_test(
        EngineMachine, settings=settings(max_examples=40, stateful_step_count=50, deadline=None)
    )


def test_sequences_give_way_where_memory_is_short():
    """What the machine relies on: preemption happens, and the texts are those without it."""
    engine, _ = world()
    whole, engine.executor.num_blocks = engine.executor.num_blocks, 6
    short = with_proposer(engine, TestProposer(), max_candidates=3, node_budget=12)
    engine.executor.num_blocks = whole
    cases = [(0, 1), (4, 1), (5, 1), (3, 1), (4, 0)]
    sequences = [short.add(PROMPTS[prompt], SamplingParams(**PARAMS[params])) for prompt, params in cases]
    finish(short)
    assert [outcome(each) for each in sequences] == [alone(case) for case in cases]
    assert sum(each.stats.num_preemptions for each in sequences) > 0
