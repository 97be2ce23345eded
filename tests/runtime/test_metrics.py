"""The counters of an engine add up what its requests count, and say nothing where nothing happened.

Run: pytest tests/runtime/test_metrics.py
"""

import dataclasses
import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import Oracle, RandomTrees, TestProposer, build, finish, outputs, run, with_proposer
from support.table_model import table_checkpoint

from tspec.core.sampling_params import SamplingParams
from tspec.core.tree import CandidateTrees
from tspec.runtime.metrics import BOUNDS_S, Counters, Durations, EngineMetrics, tree_depths
from tspec.runtime.sequence import FinishReason

VOCAB = 64
EOS = 50
BAD = 60
"""A token after which the model says nothing but NaN."""

LONG = [1, 2] * 65
RATES = ("acceptance_rate", "tokens_per_pass", "reuse_rate")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model that counts up, from 59 on again from 1; 50 ends a text."""
    folder = tmp_path_factory.mktemp("table")
    table_checkpoint(folder, {BAD - 1: 1}, vocab=VOCAB, nan_tokens=[BAD], eos_token_id=EOS)
    engine = build(folder, max_num_seqs=8)
    yield engine
    engine.close()


def upwards(start: int, count: int) -> list[int]:
    return [(start + step) % VOCAB for step in range(count)]


def test_an_engine_that_did_nothing_has_zeros_and_no_rates(plain):
    metrics = with_proposer(plain, TestProposer()).metrics()
    counts = dataclasses.asdict(dataclasses.replace(metrics, elapsed_s=0.0))
    assert counts == dataclasses.asdict(EngineMetrics())
    assert [getattr(metrics, name) for name in RATES] == [None] * 3
    assert (metrics.num_drafts, metrics.num_accepted, metrics.acceptance_by_position) == (0, 0, ())
    assert (metrics.queue_s.count, metrics.queue_s.mean_s) == (0, None)
    assert metrics.requests == {"stop": 0, "length": 0, "abort": 0, "error": 0}


def test_without_candidates_there_is_no_acceptance(plain):
    engine = with_proposer(plain, TestProposer())
    run(engine, [1], max_tokens=6)
    metrics = engine.metrics()
    assert (metrics.num_trees, metrics.num_drafts, metrics.num_candidates) == (5, 0, 0)
    assert (metrics.acceptance_rate, metrics.acceptance_by_position) == (None, ())
    assert metrics.tokens_per_pass == 1


def test_of_a_run_that_goes_past_the_end_only_the_text_counts_as_emitted(plain):
    """Six tokens come out of a pass, five candidates and the bonus token; the third of them ends the text."""
    engine = with_proposer(plain, Oracle([upwards(46, 30)], 5), max_candidates=5)
    (sequence,) = run(engine, [46], max_tokens=20)
    assert sequence.output_ids == [47, 48, 49, 50]
    metrics = engine.metrics()
    assert (metrics.num_emitted, metrics.num_from_prefill, metrics.num_trees) == (4, 1, 1)
    assert metrics.tokens_per_pass == sequence.stats.tokens_per_pass == 3
    assert (metrics.num_drafts, metrics.num_candidates, metrics.num_accepted) == (1, 5, 5)
    assert metrics.acceptance_rate == 1
    assert metrics.requests["stop"] == 1


def test_the_rate_is_that_of_candidates_that_were_there(plain):
    """Of up to seven candidates the proposer gives two, the first of them right; the last tree has room for one."""

    class Half(Oracle):
        def grow(self, text, most):
            (right,) = self.future(text)[:1]
            return [(0, right), (1, 0)][: most - 1]

    engine = with_proposer(plain, Half([upwards(1, 60)]), max_candidates=7)
    run(engine, [1], max_tokens=9)
    metrics = engine.metrics()
    assert (metrics.num_trees, metrics.num_candidates, metrics.num_accepted) == (4, 7, 4)
    assert metrics.acceptance_rate == 4 / 7
    assert metrics.acceptance_by_position == (1.0, 0.0)
    assert (metrics.num_emitted, metrics.tokens_per_pass) == (9, 2.0)


def test_positions_of_a_tree_are_depths(plain):
    """Three children of the root, the last of them right, and one below it; later trees have no room for these."""

    class Wide(Oracle):
        def grow(self, text, most):
            future = self.future(text)
            return [(0, 0), (0, 1), (0, future[0]), (3, future[1])]

    engine = with_proposer(plain, Wide([upwards(10, 60)]), max_candidates=4)
    (sequence,) = run(engine, [10], max_tokens=7)
    metrics = engine.metrics()
    assert (metrics.num_trees, metrics.num_candidates) == (4, 4 + 2 + 1 + 0)
    assert metrics.candidates_by_position == tuple(sequence.stats.candidates_by_position) == (3, 1)
    assert metrics.accepted_by_position == tuple(sequence.stats.accepted_by_position) == (1, 1)


def random_engine(plain, **options):
    texts = [upwards(start, 120) for start in (1, 20, 40)] + [LONG + upwards(3, 60)]
    return with_proposer(plain, RandomTrees(texts, 1, VOCAB), max_candidates=9, node_budget=500, **options)


def totals(sequences) -> dict:
    """What the requests counted, added up."""
    stats = [each.stats for each in sequences]
    names = (
        "num_emitted",
        "num_from_prefill",
        "num_candidates",
        "num_accepted",
        "num_drafts",
        "num_prefilled",
    )
    sums = {
        name: sum(getattr(each, name) for each in stats) for name in (*names, "num_reused", "num_preemptions")
    }
    return sums | {
        "num_trees": sum(each.num_passes for each in stats),
        "accepted_by_position": added([each.accepted_by_position for each in stats]),
        "candidates_by_position": added([each.candidates_by_position for each in stats]),
    }


def added(rows: list[list[int]]) -> tuple[int, ...]:
    width = max(map(len, rows))
    return tuple(np.sum([row + [0] * (width - len(row)) for row in rows], axis=0).tolist())


def test_the_engine_counts_what_its_requests_count_in_sum(plain):
    engine = random_engine(plain)
    sequences = run(engine, [1], [20], [40], LONG, LONG[:70], max_tokens=40)
    metrics, expected = engine.metrics(), totals(sequences)
    assert {name: getattr(metrics, name) for name in expected} == expected
    assert metrics.num_emitted == sum(len(output) for output in outputs(sequences))
    assert 0 < metrics.acceptance_rate < 1 < metrics.tokens_per_pass
    assert metrics.num_prompt_tokens == sum(len(each.prompt) for each in sequences)


def test_preempted_requests_are_computed_again_and_count_once(plain):
    """Four requests that start with a block each and end with three, and memory for five blocks."""
    prompts, params = [[start, *LONG[:50]] for start in range(3, 7)], {"max_tokens": 100, "ignore_eos": True}
    alone = outputs([run(random_engine(plain), prompt, **params)[0] for prompt in prompts])
    num_blocks, plain.executor.num_blocks = plain.executor.num_blocks, 5
    try:
        engine = random_engine(plain)
    finally:
        plain.executor.num_blocks = num_blocks
    sequences = run(engine, *prompts, **params)
    assert outputs(sequences) == alone
    metrics, expected = engine.metrics(), totals(sequences)
    assert metrics.num_preemptions > 0
    assert {name: getattr(metrics, name) for name in expected} == expected
    assert metrics.num_prefilled + metrics.num_reused > metrics.num_prompt_tokens == 4 * 51
    assert metrics.time_to_first_token_s.count == metrics.queue_s.count == metrics.e2e_s.count == 4
    assert metrics.requests == {"stop": 0, "length": 4, "abort": 0, "error": 0}


def test_a_prompt_that_another_request_had_is_looked_up_and_found(plain):
    engine = with_proposer(plain, TestProposer())
    first, second = (run(engine, LONG, max_tokens=1)[0].stats for _ in range(2))
    assert (first.num_prefilled, first.num_reused) == (130, 0)
    assert (second.num_prefilled, second.num_reused) == (2, 128)
    metrics = engine.metrics()
    assert (metrics.num_prefilled, metrics.num_reused, metrics.num_queried) == (132, 128, 260)
    assert metrics.reuse_rate == 128 / 260


def test_passes_are_counted_by_kind_and_bucket(plain):
    engine = with_proposer(plain, TestProposer())
    run(engine, [*upwards(1, 50), *upwards(1, 20)], [5], max_tokens=4)
    assert engine.metrics().passes == {"last 2x64": 1, "all 1x1": 4, "all 2x8": 1, "all 2x1": 1}


class Failing(TestProposer):
    """Fails with the first tree that it is asked for."""

    def propose(self, batch):
        raise RuntimeError("no guess today")


def test_each_request_is_counted_once_by_how_it_ended(plain):
    engine = with_proposer(plain, TestProposer(), max_num_seqs=2)
    run(engine, [46], [1], [BAD], max_tokens=8)
    assert engine.metrics().requests == {"stop": 1, "length": 1, "abort": 0, "error": 1}
    running, _, waiting = sequences = [engine.add([1], SamplingParams(max_tokens=20)) for _ in range(3)]
    engine.step()
    assert (engine.metrics().num_running, engine.metrics().num_waiting) == (2, 1)
    for sequence in (running, waiting, running):
        engine.abort(sequence)
    finish(engine)
    for sequence in sequences:
        engine.abort(sequence)
    engine.add([1], SamplingParams(max_tokens=0))
    assert engine.metrics().requests == {"stop": 1, "length": 3, "abort": 2, "error": 1}
    assert engine.metrics().num_running == engine.metrics().num_waiting == 0


def test_the_requests_of_a_step_that_failed_are_errors(plain):
    engine = with_proposer(plain, Failing(), max_num_seqs=2)
    sequences = run(engine, [1], [2], [3], max_tokens=5)
    assert {each.finish_reason for each in sequences} == {FinishReason.ERROR}
    metrics = engine.metrics()
    assert metrics.requests == {"stop": 0, "length": 0, "abort": 0, "error": 3}
    assert (metrics.num_trees, metrics.num_emitted) == (0, 3)
    assert (metrics.queue_s.count, metrics.e2e_s.count) == (3, 0)


def test_times_are_taken_of_requests_and_of_their_steps(plain):
    engine = with_proposer(plain, Oracle([upwards(1, 60)], 3), max_candidates=3, max_num_seqs=1)
    sequences = run(engine, [1], [1], max_tokens=9)  # one token, then twice four
    dropped = engine.add([1], SamplingParams(max_tokens=9))
    engine.step()
    engine.abort(dropped)
    metrics = engine.metrics()
    stats = [each.stats for each in sequences]
    assert (metrics.e2e_s.count, metrics.time_per_token_s.count) == (2, 2)
    assert metrics.e2e_s.total_s == sum(each.e2e_s for each in stats)
    assert metrics.time_per_token_s.total_s == sum(each.decode_s / 8 for each in stats)
    stats.append(dropped.stats)
    assert metrics.queue_s.total_s == sum(each.queue_s for each in stats)
    assert metrics.time_to_first_token_s.total_s == sum(each.time_to_first_token_s for each in stats)
    assert metrics.inter_token_s.count == 2 + 2 + 1
    between = sum(each.last_token_s - each.first_token_s for each in stats)
    assert metrics.inter_token_s.total_s == pytest.approx(between)
    assert stats[1].admitted_s >= stats[0].end_s
    assert stats[0].e2e_s > stats[0].time_to_first_token_s > stats[0].queue_s > 0


def test_a_text_without_a_token_has_no_time_to_its_first(plain):
    engine = with_proposer(plain, TestProposer())
    (sequence,) = run(engine, [BAD], max_tokens=9)
    assert (sequence.finish_reason, sequence.output_ids) == (FinishReason.ERROR, [])
    assert sequence.stats.time_to_first_token_s is None
    assert engine.metrics().time_to_first_token_s.count == engine.metrics().num_prompt_tokens == 0


def test_a_duration_is_in_the_first_bucket_that_holds_it(plain):
    counters = Counters()
    (sequence,) = run(with_proposer(plain, TestProposer()), [1], max_tokens=1)
    sequence.stats.start_s = 0.0
    for seconds in (0.0, 0.001, 0.0011, 499.9, 500.0, 501.0, 1e9):
        sequence.stats.end_s = seconds
        counters.add_ended(sequence)
    durations = counters.read(plain.scheduler).e2e_s
    assert durations.counts == (2, 1, *[0] * (len(BOUNDS_S) - 3), 2, 2)
    assert durations.count == 7
    assert durations.mean_s == durations.total_s / 7


def test_a_snapshot_stays_what_it_was(plain):
    engine = random_engine(plain)
    run(engine, [1], max_tokens=10)
    before = engine.metrics()
    kept = dataclasses.asdict(before)
    run(engine, [20], LONG, max_tokens=20)
    assert dataclasses.asdict(before) == kept
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.num_emitted = 0


def test_two_snapshots_give_what_was_between_them(plain):
    engine = random_engine(plain)
    run(engine, [1], max_tokens=10)
    before = engine.metrics()
    sequences = run(engine, [20], [40], LONG, max_tokens=30)
    between, expected = engine.metrics().since(before), totals(sequences)
    width = len(between.candidates_by_position)
    for name in ("accepted_by_position", "candidates_by_position"):
        expected[name] += (0,) * (width - len(expected[name]))
    assert {name: getattr(between, name) for name in expected} == expected
    assert between.requests == {"stop": 2, "length": 1, "abort": 0, "error": 0}
    assert between.e2e_s.count == 3
    assert sum(between.passes.values()) == sum(engine.metrics().passes.values()) - sum(before.passes.values())
    assert before.since(before) == EngineMetrics(
        passes={key: 0 for key in before.passes},
        candidates_by_position=(0,) * len(before.candidates_by_position),
        accepted_by_position=(0,) * len(before.accepted_by_position),
    )


def test_metrics_can_be_written_as_json(plain):
    engine = random_engine(plain)
    run(engine, [1], max_tokens=5)
    fields = dataclasses.asdict(engine.metrics())
    assert json.loads(json.dumps(fields))["passes"] == engine.metrics().passes


def test_another_thread_may_ask_while_the_engine_runs(plain):
    engine = random_engine(plain)
    is_done, seen, errors = threading.Event(), [EngineMetrics()], []

    def ask():
        try:
            while not is_done.is_set():
                seen.append(engine.metrics())
                assert (seen[-1].acceptance_rate or 0) <= 1
                assert max(seen[-1].acceptance_by_position, default=0) <= 1
                assert (seen[-1].reuse_rate or 0) <= 1
                assert seen[-1].num_emitted >= seen[-2].num_emitted
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    run(engine, [1], [20], [40], LONG, LONG, max_tokens=60)
    is_done.set()
    thread.join()
    assert errors == []
    assert len(seen) > 2


@given(st.lists(st.lists(st.integers(0, 62), max_size=63), min_size=1, max_size=4))
def test_the_depth_of_a_tree_is_that_of_its_deepest_node(rows):
    """Each node names some node before it."""
    parents = np.zeros((len(rows), 64), np.int32)
    expected = []
    for row, choices in enumerate(rows):
        depths = [0]
        for node, choice in enumerate(choices, start=1):
            parents[row, node] = choice % node
            depths.append(depths[choice % node] + 1)
        expected.append(max(depths))
    parents[:, 0] = -1
    counts = np.array([len(row) + 1 for row in rows], np.int32)
    assert tree_depths(CandidateTrees(np.zeros_like(parents), parents, counts)) == expected


def test_no_durations_are_no_mean():
    assert Durations().mean_s is None
