"""Requests that come, go, are dropped and give way at random: each text is the one it has alone, and nothing leaks.

Run: pytest tests/property/test_engine_machine.py
"""

import functools
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.engines import RandomTrees, TestProposer, build, finish, run, with_proposer
from support.tiny_models import tiny_checkpoint

from tspec.core.sampling_params import SamplingParams
from tspec.core.speculative_config import SpeculativeConfig
from tspec.proposers.ngram import NgramProposer
from tspec.runtime.sequence import FinishReason

VOCAB = 61
RANDOM = np.random.default_rng(5)
LONG = RANDOM.integers(0, VOCAB, 150).tolist()
PROMPTS = [LONG, LONG[:64], LONG[:65], [*LONG[:130], 3, 4], [7], LONG[100:], LONG[:128], [5] * 40]
PARAMS = [
    {"max_tokens": 150},
    {"max_tokens": 200, "temperature": 1.5, "seed": 3},
    {"max_tokens": 1},
    {"max_tokens": 30, "temperature": 1.2, "seed": 4, "top_p": 0.9, "logprobs": 2},
    {"max_tokens": 120, "repetition_penalty": 1.3, "bad_words": [[5], [3, 9]], "min_tokens": 3},
    {"max_tokens": 20, "prompt_logprobs": 1, "speculative": "off"},
    {"max_tokens": 70, "speculative": 2, "stop_token_ids": [11, 12, 13]},
]
MOST_BLOCKS = 4
"""What the longest request needs: the context."""

LOOKUP = SpeculativeConfig(method="ngram", num_speculative_tokens=9)

PICKS = st.integers(0, 1 << 16)
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
    """Drives an engine with a third of the memory that its requests would like to have.

    open     requests that have to come to their ends, with the case that says what their texts are
    dropped  requests that were aborted in time
    """

    done: ClassVar[Counter[str]] = Counter()

    @initialize(
        num_blocks=st.integers(MOST_BLOCKS, 7),
        num_seqs=st.integers(2, 8),
        seed=st.integers(0, 1 << 32),
        is_ngram=st.booleans(),
        mixes_prompts=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_blocks, num_seqs, seed, is_ngram, mixes_prompts):
        engine, _ = world()
        texts = [PROMPTS[prompt] + alone((prompt, params))[0] for prompt in (0, 4) for params in (0, 1)]
        proposer = NgramProposer(LOOKUP) if is_ngram else RandomTrees(texts, seed, VOCAB)
        whole, engine.executor.num_blocks = engine.executor.num_blocks, num_blocks
        try:
            options = {"max_candidates": 9, "max_num_seqs": num_seqs, "node_budget": 12}
            self.engine = with_proposer(engine, proposer, mixes_prompts=mixes_prompts, **options)
        finally:
            engine.executor.num_blocks = whole
        self.open = []
        self.dropped = []

    @rule(cases=st.lists(CASES, min_size=1, max_size=2), priority=st.integers(0, 1))
    def add(self, cases, priority):
        for case in cases:
            params = SamplingParams(**PARAMS[case[1]])
            self.open.append((case, self.engine.add(PROMPTS[case[0]], params, priority=priority)))
            self.done["added"] += 1

    @precondition(lambda self: self.engine.has_work)
    @rule(count=st.integers(1, 12))
    def steps(self, count):
        for _ in range(count):
            if self.engine.has_work:
                self.step()

    def step(self):
        """One step, after which all books are in order, and each text is a beginning of what it has to be."""
        before = [(each, each.num_output, each.stats.num_accepted) for _, each in self.open]
        advanced = self.engine.step()
        self.engine.scheduler.check(self.dropped)
        for sequence, num_output, num_accepted in before:
            assert (sequence in advanced) == (
                sequence.num_output > num_output or sequence.finish_reason is FinishReason.ERROR
            )
            gained = sequence.stats.num_accepted - num_accepted
            assert 0 <= gained <= max(0, sequence.num_output - num_output - 1) or sequence.finish_reason
        for case, sequence in self.open:
            text, reason, *_ = alone(case)
            assert sequence.output_ids == text[: sequence.num_output], case
            assert sequence.finish_reason in (None, reason), case
        self.done["steps"] += 1

    @precondition(lambda self: self.open)
    @rule(number=PICKS)
    def abort(self, number):
        """Of a request that waits, runs, or has ended."""
        case, sequence = self.open[number % len(self.open)]
        self.engine.abort(sequence)
        if sequence.finish_reason is FinishReason.ABORT:
            assert sequence.output_ids == alone(case)[0][: sequence.num_output]
            self.open.remove((case, sequence))
            self.dropped.append(sequence)
            self.done["aborted"] += 1

    @precondition(lambda self: self.engine.scheduler.running)
    @rule(number=PICKS)
    def preempt(self, number):
        """Any sequence gives way, beside those that have to."""
        running = self.engine.scheduler.running
        self.engine.scheduler.preempt(running[number % len(running)])
        self.done["preempted"] += 1

    @invariant()
    def nothing_leaks(self):
        if hasattr(self, "engine"):
            self.engine.scheduler.check(self.dropped)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        while self.engine.has_work:
            self.step()
        for case, sequence in self.open:
            assert outcome(sequence) == alone(case), case
        scheduler = self.engine.scheduler
        scheduler.check([*self.dropped, *(sequence for _, sequence in self.open)])
        assert (scheduler.kv.num_free, scheduler.running) == (scheduler.kv.num_blocks, [])
        self.done["made to wait"] += scheduler.num_preemptions


@pytest.fixture(scope="module", autouse=True)
def all_known():
    """The texts that the machine compares with, before it uses the memory for itself."""
    for case in ((prompt, params) for prompt in range(len(PROMPTS)) for params in range(len(PARAMS))):
        alone(case)
    yield
    world()[0].close()


def test_each_text_is_the_one_it_has_alone_and_nothing_leaks():
    """In at least 2,000 steps, and with some of everything that can happen between two of them."""
    done = EngineMachine.done
    done.clear()
    run_state_machine_as_test(
        EngineMachine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None)
    )
    assert done["steps"] >= 2000
    assert min(done["aborted"], done["preempted"]) > 0
    assert done["made to wait"] > done["preempted"], "memory was short, too"


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
