"""Random traffic, and very many requests: nothing stays, and memory is flat. `benchmarks/soak.py` is the long form.

Run: pytest tests/test_soak.py -m "slow or not slow"
"""

import asyncio
import gc
import json

import pytest

from benchmarks.soak import MAX_MODEL_LEN, Report, Sample, Soak, Traffic, leaks, open_llm, rss_mib
from tspec import LLM, SamplingParams

NGRAM = {"method": "ngram", "prompt_lookup_min": 1}


NUM_REQUESTS = 160
KEPT_OBJECTS = 25
"""Python objects a request: plans that are bound for the first time come to a few, a sequence that is kept to fifty."""


@pytest.fixture(scope="module")
def llm(long_folder):
    """One that has met most kinds of passes and buckets."""
    llm = open_llm(long_folder, num_threads=1)
    traffic(llm, seed=1)
    yield llm
    llm.close()


def traffic(llm, seed):
    soak = Soak(llm, Traffic(llm.config.vocab_size, MAX_MODEL_LEN, seed, has_text=True), pause_s=0.002)
    return asyncio.run(soak.run(24, seconds=240, num_requests=NUM_REQUESTS, sample_s=2))


def num_objects():
    gc.collect()
    return len(gc.get_objects())


def test_random_traffic_leaves_nothing(llm):
    before = num_objects()
    report = traffic(llm, seed=2)
    assert (report.errors, report.leaks) == ([], {})
    assert report.num_requests >= NUM_REQUESTS
    assert min(report.ways[way] for way in ("generate", "stream", "cancel", "leave", "refused")) > 0
    assert json.loads(report.to_json())["ways"] == dict(report.ways)
    assert report.samples[-1].objects - before < KEPT_OBJECTS * NUM_REQUESTS


def test_requests_that_are_kept_are_seen(llm, monkeypatch):
    """What the test above relies on."""
    engine, kept, before = llm._engine.opened(), [], num_objects()
    add = engine.add
    monkeypatch.setattr(
        engine, "add", lambda *args, **options: kept.append(add(*args, **options)) or kept[-1]
    )
    report = traffic(llm, seed=3)
    assert (report.errors, report.leaks) == ([], {})
    assert report.samples[-1].objects - before > KEPT_OBJECTS * NUM_REQUESTS


def test_what_is_held_is_seen_by_its_name(long_folder):
    llm = open_llm(long_folder, num_threads=1)
    engine = llm._engine.opened()
    assert leaks(llm) == {}
    params = SamplingParams(max_tokens=50)
    for number in range(20):  # nothing steps them: the engine's thread waits for a call
        llm._engine.add([number], [params], priority=number)
    assert leaks(llm) == {"waiting": 20, "handles": 20}
    engine.step()
    assert leaks(llm) == {
        "KV blocks": 16,
        "running": 16,
        "waiting": 4,
        "texts of the proposer": 16,
        "handles": 20,
    }
    for sequence in [*engine.scheduler.running, *engine.scheduler.waiting]:
        engine.abort(sequence)
    llm._thread._open.add(None)
    assert leaks(llm) == {"handles": 20, "calls": 1}
    llm._thread._open.clear()
    llm.close()


def test_the_slope_is_that_of_the_second_half():
    samples = [Sample(seconds, 0, rss, 0) for seconds, rss in ((0, 100), (60, 700), (120, 800), (180, 801))]
    assert Report(samples=samples).slope_mib_an_hour() == pytest.approx(60)


@pytest.mark.slow
def test_memory_is_flat_over_100_000_requests(tiny_folder):
    """One token each, plain and sampled; a tenth is dropped. The first part fills caches and Python's own pools."""
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=1, temperature=1.0, top_k=5)]
    with LLM(tiny_folder, num_threads=1, max_num_seqs=64, kv_cache_mib=4, speculative_config=NGRAM) as llm:

        def serve(num_requests):
            for number in range(0, num_requests, 100):
                prompts = [[number % 251, each, each * 3 % 256] for each in range(100)]
                handles = [llm.add_request(prompt, params[prompt[1] % 2]) for prompt in prompts]
                for handle in handles[::10]:
                    llm.abort(handle)
                while llm.has_work:
                    llm.step()
                reasons = [handle.result.finish_reason for handle in handles]
                assert set(reasons[::10]) == {"abort"} and "error" not in reasons
            gc.collect()
            return rss_mib(), len(gc.get_objects())

        before_mib, before = serve(20_000)
        after_mib, after = serve(80_000)
        engine = llm._engine.opened()
        assert engine.proposer.num_texts == 0 and llm._engine._handles == {}
        assert engine.metrics().num_emitted == 90_000
    assert after_mib - before_mib < 4, "a hundred bytes a request would be 8 MiB"
    assert after - before < 1000
