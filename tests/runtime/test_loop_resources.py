"""What requests hold, and give back: blocks, slots, the proposer's memory; and proposers that break the rules.

Run: pytest tests/runtime/test_loop_resources.py
"""

import numpy as np
import pytest
from support.engines import NGRAM, Oracle, TestProposer, build, finish, num_held, outputs, run, with_proposer
from support.tiny_models import tiny_checkpoint

from tspec.core.errors import CapacityError, ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.core.tree import CandidateTrees
from tspec.runtime.sequence import FinishReason

VOCAB = 61
NOTHING = {"blocks": 0, "running": 0, "waiting": 0}
PROMPTS = [np.random.default_rng(number).integers(0, VOCAB, 20).tolist() for number in range(20)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    tiny_checkpoint(folder, "llama", hidden=48, heads=6, kv_heads=6, layers=4, vocab=VOCAB)
    return folder


@pytest.fixture(scope="module")
def plain(folder):
    engine = build(folder, max_num_seqs=20)
    yield engine
    engine.close()


@pytest.fixture
def alone(plain):
    return outputs([run(plain, prompt, max_tokens=60)[0] for prompt in PROMPTS])


def test_requests_wait_for_blocks_and_say_what_they_say_alone(folder, alone):
    """KV memory of 1 MiB: a few of twenty requests run at a time, in the order in which they came."""
    engine = build(folder, NGRAM, max_num_seqs=20, kv_cache_mib=1)
    sequences = [engine.add(prompt, SamplingParams(max_tokens=60)) for prompt in PROMPTS]
    engine.step()
    running = num_held(engine)["running"]
    assert 1 < running < 10
    assert [each.slot >= 0 for each in sequences] == [True] * running + [False] * (20 - running)
    finish(engine)
    assert num_held(engine) == NOTHING
    engine.close()
    assert outputs(sequences) == alone


def test_requests_wait_for_slots(folder, alone):
    engine = build(folder, max_num_seqs=3)
    sequences = [engine.add(prompt, SamplingParams(max_tokens=60)) for prompt in PROMPTS]
    while engine.has_work:
        engine.step()
        assert num_held(engine)["running"] <= 3
    engine.close()
    assert outputs(sequences) == alone


def test_a_request_that_no_memory_will_ever_hold_is_refused_at_once(folder):
    tiny = with_blocks(folder, 2)
    with pytest.raises(
        CapacityError, match=r"KV blocks for a request: got 2 blocks in all, need 4\. Lower max_tokens"
    ):
        tiny.add(PROMPTS[0], SamplingParams(max_tokens=230))
    assert not tiny.has_work
    (sequence,) = run(tiny, PROMPTS[0], max_tokens=100)
    tiny.close()
    assert sequence.num_output == 100


def with_blocks(folder, num_blocks: int):
    """An engine whose pool has so many blocks."""
    engine = build(folder, max_num_seqs=20)
    engine.executor.num_blocks = num_blocks
    return with_proposer(engine, TestProposer(), max_candidates=0)


def test_abort_gives_back_what_a_request_holds_wherever_it_is(plain, alone):
    engine = with_proposer(plain, TestProposer(), max_num_seqs=2)
    sequences = [engine.add(prompt, SamplingParams(max_tokens=60)) for prompt in PROMPTS[:6]]
    engine.abort(sequences[1])  # before the first step
    engine.step()
    engine.step()
    engine.abort(sequences[0])  # while it runs
    engine.abort(sequences[5])  # while it waits
    engine.abort(sequences[0])  # again
    finish(engine)
    engine.abort(sequences[2])  # after its end
    assert num_held(engine) == NOTHING
    assert engine.proposer.texts == {}
    assert outputs(sequences)[2:5] == alone[2:5]
    assert [len(each) for each in outputs(sequences)] == [3, 0, 60, 60, 60, 0]


def test_a_thousand_requests_of_one_token_leave_nothing_behind(folder):
    engine = build(folder, NGRAM, max_num_seqs=4, kv_cache_mib=1)
    for start in range(0, 1000, 25):
        prompts = [PROMPTS[number % 20][: 1 + number % 7] for number in range(start, start + 25)]
        sequences = run(engine, *prompts, max_tokens=1)
        assert [len(each.output_ids) for each in sequences] == [1] * 25
    assert num_held(engine) == NOTHING
    engine.scheduler.check()
    assert engine.proposer._regions.end <= 4 * 1024  # as four texts need, not a thousand
    engine.close()


class Outside(TestProposer):
    """Proposes one token that the model does not have."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token

    def grow(self, text, most):
        return [(0, 1), (0, self.token)][: most - 1]


@pytest.mark.parametrize("token", [VOCAB, -1, 1 << 30])
def test_a_candidate_outside_the_vocabulary_is_refused_and_the_engine_goes_on(plain, alone, token):
    engine = with_proposer(plain, Outside(token))
    sequence = engine.add(PROMPTS[0], SamplingParams(max_tokens=60))
    assert engine.step() == [sequence]
    assert sequence.finish_reason is FinishReason.ERROR
    assert "candidates of proposer test: got ids " in sequence.error
    assert f"need ids from 0 to {VOCAB - 1}" in sequence.error
    assert num_held(engine) == NOTHING
    engine.proposer.token = 2
    (sequence,) = run(engine, PROMPTS[0], max_tokens=60)
    assert sequence.output_ids == alone[0]


class TooMany(TestProposer):
    """A tree larger than it may be, or without its root."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.num_nodes = num_nodes

    def propose(self, batch):
        width = max(self.num_nodes, 1)
        rows = len(batch.slots)
        parents = np.tile(np.arange(-1, width - 1, dtype=np.int32), (rows, 1))
        tokens = np.ones_like(parents)
        tokens[:, 0] = batch.roots
        return CandidateTrees(tokens, parents, np.full(rows, self.num_nodes, np.int32))


@pytest.mark.parametrize("num_nodes", [0, 9, 70])
def test_a_tree_of_a_forbidden_size_is_refused(plain, num_nodes):
    """It would write keys behind the sequence's blocks."""
    engine = with_proposer(plain, TooMany(num_nodes), max_candidates=7)
    sequence = engine.add(PROMPTS[0], SamplingParams(max_tokens=60))
    assert engine.step() == [sequence]
    assert f"nodes of proposer test: got {num_nodes}, need 1 to 8" in sequence.error
    assert num_held(engine) == NOTHING


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ([], "no tokens"),
        ([0, VOCAB], f"ids 0 to {VOCAB}"),
        ([-1, 3], "ids -1 to 3"),
        ([[1, 2]], "ids 1 to 2"),
    ],
)
def test_an_impossible_prompt_is_refused(plain, prompt, found):
    with pytest.raises(ConfigError, match=f"got {found}, need"):
        plain.add(prompt, SamplingParams())
    assert not plain.has_work


@pytest.mark.parametrize("prompt", [[1.5, 2.0], ["1", "2"], [True, False], [1 << 70], [[1], [2, 3]], [None]])
def test_a_prompt_of_anything_but_whole_numbers_is_refused(plain, prompt):
    with pytest.raises(ConfigError, match="prompt tokens: got "):
        plain.add(prompt, SamplingParams())


def test_a_prompt_that_fills_the_context_is_refused(plain):
    with pytest.raises(CapacityError, match="prompt length: got 256 tokens, need at most 255"):
        plain.add([1] * 256, SamplingParams())
    (sequence,) = run(plain, [1] * 255, max_tokens=9)
    assert sequence.num_output == 1


def test_the_budget_of_a_pass_is_shared_out_over_its_rows(plain, alone):
    """Each row may have a root, however small the budget."""
    known = [prompt + output for prompt, output in zip(PROMPTS, alone, strict=True)]
    for budget, rows, most in ((8, 1, 8), (8, 2, 4), (8, 3, 2), (8, 9, 1), (1, 1, 1)):
        proposer = Oracle(known)
        engine = with_proposer(plain, proposer, max_candidates=63, max_num_seqs=20, node_budget=budget)
        sequences = run(engine, *PROMPTS[:rows], max_tokens=20)
        assert proposer.rounds[0] == ([most] * rows, [most] * rows)
        assert outputs(sequences) == [output[:20] for output in alone[:rows]]


def test_candidates_come_back_when_others_have_left(plain):
    """A batch grows past the budget, where all decode plainly, and shrinks again: no proposer has lost the thread."""
    (whole,) = run(plain, PROMPTS[0], max_tokens=230)
    oracle = Oracle([whole.tokens])
    engine = with_proposer(plain, oracle, max_candidates=7, max_num_seqs=20, node_budget=8)
    long = engine.add(PROMPTS[0], SamplingParams(max_tokens=230))
    for _ in range(3):
        engine.step()
    for prompt in PROMPTS[1:9]:
        engine.add(prompt, SamplingParams(max_tokens=30))
    finish(engine)
    assert long.output_ids == whole.output_ids
    sizes = [sizes for _, sizes in oracle.rounds]
    num_rows = [len(each) for each in sizes]
    assert max(num_rows) == 9
    assert num_rows[:2] == num_rows[-9:-7] == [1, 1]
    assert [each[0] for each in sizes[:-2]] == [max(1, 8 // rows) for rows in num_rows[:-2]]
    assert long.stats.num_accepted == long.stats.num_candidates > 100
    assert long.stats.num_emitted == 1 + long.stats.num_passes + long.stats.num_accepted
