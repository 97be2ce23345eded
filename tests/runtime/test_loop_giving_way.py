"""Sequences that give way and are resumed, and requests that are dropped at any moment, leave no trace in any text.

Run: pytest tests/runtime/test_loop_giving_way.py
"""

import numpy as np
import pytest
from support.engines import Oracle, RandomTrees, TestProposer, build, finish, num_held, run, with_proposer
from support.tiny_models import tiny_checkpoint

from tspec.core.sampling_params import SamplingParams
from tspec.core.shapes import mask_words
from tspec.runtime.sequence import FinishReason

VOCAB = 61
NOTHING = {"blocks": 0, "running": 0, "waiting": 0}
PROMPTS = [np.random.default_rng(number).integers(0, VOCAB, 30 + number).tolist() for number in range(8)]
WAYS = [{}, {"temperature": 1.4, "seed": 2, "logprobs": 1}, {"repetition_penalty": 1.2, "prompt_logprobs": 0}]
ASKED = [{"max_tokens": 150, **WAYS[number % len(WAYS)]} for number in range(len(PROMPTS))]


class Watched(RandomTrees):
    """Sees that each text begins as it was committed, and that what is accepted was proposed in this very round."""

    def __init__(self, texts):
        super().__init__(texts, 2, VOCAB)
        self.num_admitted = 0
        self.proposed = {}

    def admit(self, slot, prompt):
        assert any(text[: len(prompt)] == prompt.tolist() for text in self.known)
        super().admit(slot, prompt)
        self.num_admitted += 1
        assert slot not in self.proposed

    def propose(self, batch):
        trees = super().propose(batch)
        self.proposed = dict(zip(batch.slots.tolist(), trees.num_nodes.tolist(), strict=True))
        return trees

    def observe(self, committed):
        rows = zip(committed.slots.tolist(), committed.num_accepted.tolist(), strict=True)
        for slot, num_accepted in rows:
            assert 0 <= num_accepted < self.proposed.pop(slot, 1)
        super().observe(committed)


def outcome(sequence):
    return sequence.output_ids, sequence.finish_reason, sequence.logprobs, sequence.prompt_logprobs


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    tiny_checkpoint(folder, "llama", hidden=48, heads=6, kv_heads=2, vocab=VOCAB)
    engine = build(folder, max_num_seqs=8)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def alone(plain):
    cases = zip(PROMPTS, ASKED, strict=True)
    return [run(with_proposer(plain, TestProposer()), prompt, **params)[0] for prompt, params in cases]


@pytest.fixture
def engine(plain, alone):
    return with_proposer(plain, Watched([each.tokens for each in alone]), max_candidates=6, node_budget=60)


def add_all(engine):
    return [
        engine.add(prompt, SamplingParams(**params)) for prompt, params in zip(PROMPTS, ASKED, strict=True)
    ]


def step(engine, count=1):
    for _ in range(count):
        engine.step()
        engine.scheduler.check()


@pytest.mark.parametrize("every", [2, 3, 5])
def test_texts_are_the_same_however_often_sequences_give_way(engine, alone, every):
    """In turn, within their prompts and behind them, alone and several at a time."""
    sequences, turn = add_all(engine), 0
    while engine.has_work:
        step(engine, every)
        running = engine.scheduler.running
        for _ in range(min(len(running), turn % 3)):
            engine.scheduler.preempt(running[turn % len(running)])
        turn += 1
    assert [outcome(each) for each in sequences] == [outcome(each) for each in alone]
    assert engine.proposer.num_admitted == len(PROMPTS) + engine.metrics().num_preemptions > 15
    assert engine.metrics().num_accepted == sum(each.stats.num_accepted for each in sequences) > 50
    assert num_held(engine) == NOTHING


def test_memory_for_two_of_eight_is_enough(plain, alone):
    """Each needs three blocks in the end: those that came last give way again and again."""
    whole, plain.executor.num_blocks = plain.executor.num_blocks, 6
    engine = with_proposer(plain, Watched([each.tokens for each in alone]), max_candidates=6, node_budget=60)
    plain.executor.num_blocks = whole
    sequences = add_all(engine)
    while engine.has_work:
        step(engine)
    assert [outcome(each) for each in sequences] == [outcome(each) for each in alone]
    assert engine.metrics().num_preemptions > 2


@pytest.mark.parametrize("when", ["running", "waiting again", "in its prompt again", "resumed"])
def test_a_request_may_be_dropped_before_and_after_it_gave_way(engine, alone, when):
    sequences = add_all(engine)
    dropped = sequences[2]
    while dropped.num_output < 60:
        step(engine)
    engine._num_cheap_nodes = 8  # so that its text takes several steps
    if when != "running":
        engine.scheduler.preempt(dropped)
    if when == "in its prompt again":
        step(engine)
        assert 0 < dropped.prefix_len < len(dropped.tokens) - 1
    elif when == "resumed":
        step(engine, 20)
    num_output, before = dropped.num_output, engine.metrics()
    engine.abort(dropped)
    assert (dropped.table, dropped.slot, dropped.finish_reason) == (None, -1, FinishReason.ABORT)
    step(engine, 3)
    late = engine.add(PROMPTS[2], SamplingParams(**ASKED[2]))
    finish(engine)
    assert (dropped.num_output, dropped.output_ids) == (num_output, alone[2].output_ids[:num_output])
    others = [*sequences[:2], late, *sequences[3:]]
    assert [outcome(each) for each in others] == [outcome(each) for each in alone]
    assert engine.metrics().since(before).num_accepted >= 0
    assert num_held(engine) == NOTHING


class Dropping:
    """A constraint that allows all, and drops requests when it is asked for the `count`th time, inside a step."""

    def __init__(self, count):
        self.count, self.drop = count, lambda: None

    def start(self, vocab_size, stop_ids):
        self.mask = np.full(mask_words(vocab_size), -1, dtype=np.int32)
        return self

    def fill_mask(self, mask):
        mask[:] = self.mask
        self.count -= 1
        if self.count == 0:
            self.drop()

    def advance(self, token):
        return True

    def take_back(self, count):
        pass


@pytest.mark.parametrize("count", [1, 2, 20])
@pytest.mark.parametrize("victims", [[0], [3], [7], [0, 3, 7]])
def test_requests_may_be_dropped_between_proposing_and_verifying(plain, alone, count, victims):
    """By a constraint, say. The step goes on, and they leave at its end; the others' keys stay where they belong."""
    known = [each.tokens for each in alone]
    engine = with_proposer(plain, Oracle(known, 4), max_candidates=4, node_budget=60, max_num_seqs=7)
    dropping = Dropping(count)
    asked = [dict(each) for each in ASKED]
    asked[3]["constraint"] = dropping
    sequences = [
        engine.add(prompt, SamplingParams(**params)) for prompt, params in zip(PROMPTS, asked, strict=True)
    ]
    dropping.drop = lambda: [engine.abort(sequences[victim]) for victim in victims]
    while engine.has_work:
        step(engine)
    for number, sequence in enumerate(sequences):
        if number in victims:
            text = alone[number].output_ids
            assert sequence.finish_reason is FinishReason.ABORT
            assert sequence.output_ids == text[: sequence.num_output] != text
        else:
            assert outcome(sequence) == outcome(alone[number])
    assert engine.metrics().requests["abort"] == len(victims)
    assert num_held(engine) == NOTHING
    # What they left in shared blocks is sound, too.
    again = [run(engine, prompt, **params)[0] for prompt, params in zip(PROMPTS, ASKED, strict=True)]
    assert [outcome(each) for each in again] == [outcome(each) for each in alone]
