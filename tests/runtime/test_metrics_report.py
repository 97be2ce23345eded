"""Who asked hears what an engine did, at most so often, and can do no harm; the log gets a line as often.

Run: pytest tests/runtime/test_metrics_report.py
"""

import logging

import pytest
from support.engines import build, finish, run
from support.table_model import table_checkpoint

from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.runtime.metrics import Durations, EngineMetrics
from tspec.runtime.metrics_report import log_line

SELDOM = 3600.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    table_checkpoint(folder, {}, vocab=64)
    return folder


@pytest.fixture
def make(folder):
    """Makes engines, and closes them."""
    engines = []

    def make(**options):
        engines.append(build(folder, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def test_metrics_come_after_each_step_where_no_time_has_to_pass(make):
    seen = []
    engine = make(on_metrics=seen.append, metrics_interval_s=0)
    sequence = engine.add([1], SamplingParams(max_tokens=5))
    while engine.has_work:
        engine.step()
        assert seen[-1].num_emitted == sequence.num_output
    assert [each.num_emitted for each in seen] == [2, 3, 4, 5]
    engine.close()
    assert len(seen) == 4


def test_what_came_in_the_last_interval_comes_at_the_end(make):
    seen = []
    engine = make(on_metrics=seen.append, metrics_interval_s=SELDOM)
    run(engine, [1], max_tokens=5)
    running = engine.add([1], SamplingParams(max_tokens=9))
    engine.step()
    assert seen == []
    engine.close()
    assert (seen[0].num_emitted, seen[0].requests["abort"], seen[0].num_running) == (7, 1, 0)
    assert running.num_output == 2
    engine.close()
    assert len(seen) == 1


def test_an_engine_that_ran_nothing_reports_nothing(make, caplog):
    caplog.set_level(logging.INFO, logger="tspec")
    seen = []
    make(on_metrics=seen.append).close()
    assert seen == [] and caplog.messages == []


def test_a_listener_that_fails_is_logged_and_hurts_no_request(make, caplog):
    seen = []

    def fail(metrics):
        seen.append(metrics)
        raise ValueError("full disk")

    engine = make(on_metrics=fail, metrics_interval_s=0)
    (sequence,) = run(engine, [1], max_tokens=4)
    assert sequence.output_ids == [2, 3, 4, 5]
    assert len(seen) == 3
    assert [record.exc_info[1].args for record in caplog.records] == [("full disk",)] * 3


def test_a_listener_may_drop_and_add_requests(make):
    added = []

    def swap(metrics):
        if metrics.num_emitted == 3:
            engine.abort(first)
            added.append(engine.add([30], SamplingParams(max_tokens=2)))

    engine = make(on_metrics=swap, metrics_interval_s=0)
    first = engine.add([1], SamplingParams(max_tokens=9))
    finish(engine)
    assert (first.output_ids, first.finish_reason.value) == ([2, 3, 4], "abort")
    assert added[0].output_ids == [31, 32]


def test_the_log_says_what_happened_since_the_line_before(make, caplog):
    caplog.set_level(logging.INFO, logger="tspec")
    engine = make(metrics_interval_s=0)
    run(engine, [1, 2, 3], max_tokens=2)
    run(engine, [1, 2, 3], max_tokens=3)
    lines = [line for line in caplog.messages if "output" in line]
    assert len(lines) == 3
    assert "prefill 0.0 tokens/s" not in lines[1] and "prefill 0.0 tokens/s" in lines[2]
    assert all("running 0, waiting 0, KV 0.0%" in line for line in (lines[0], lines[2]))
    assert all("tokens per pass 1.00" in line and "acceptance" not in line for line in lines)


def test_nothing_is_read_for_a_log_that_does_not_want_it(make, caplog, monkeypatch):
    caplog.set_level(logging.WARNING, logger="tspec")
    engine = make(metrics_interval_s=0)
    monkeypatch.setattr(engine, "metrics", None)
    (sequence,) = run(engine, [1], max_tokens=3)
    assert sequence.num_output == 3


def test_a_line_has_the_figures_that_there_are():
    metrics = EngineMetrics(
        num_running=3,
        num_waiting=1,
        kv_usage=0.255,
        elapsed_s=10.0,
        num_preemptions=2,
        num_prefilled=1000,
        num_queried=400,
        num_reused=100,
        num_emitted=520,
        num_from_prefill=20,
        num_trees=250,
        num_candidates=600,
        candidates_by_position=(250, 250, 100),
        accepted_by_position=(150, 90, 10),
        e2e_s=Durations(),
    )
    assert log_line(metrics) == (
        "10.0 s, prefill 100.0 tokens/s, output 52.0 tokens/s, running 3, waiting 1, KV 25.5%, prefix hits 25.0%, "
        "preemptions 2, acceptance 41.7% of 600 candidates, tokens per pass 2.00"
    )
    assert log_line(EngineMetrics()) == (
        "0.0 s, prefill 0.0 tokens/s, output 0.0 tokens/s, running 0, waiting 0, KV 0.0%"
    )


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "10", None])
def test_an_impossible_interval_is_refused(folder, seconds):
    with pytest.raises(ConfigError, match=r"metrics_interval_s: got .* need seconds, at least 0"):
        build(folder, metrics_interval_s=seconds)


def test_what_cannot_be_called_is_refused(folder):
    with pytest.raises(ConfigError, match="on_metrics: got 'print', need a function"):
        build(folder, on_metrics="print")
