"""Metrics as Prometheus reads them: names that vLLM's users know, values of one snapshot.

Run: pytest tests/test_prometheus.py
"""

import re
import sys
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.sources import ROOT
from support.table_model import table_checkpoint

from tspec import LLM, ConfigError, SamplingParams
from tspec.core.proposer import SourceTally
from tspec.prometheus import EngineCollector
from tspec.runtime.metrics import BOUNDS_S, Durations, EngineMetrics

METRICS = EngineMetrics(
    num_running=3,
    num_waiting=2,
    kv_usage=0.25,
    elapsed_s=9.0,
    requests={"stop": 4, "length": 3, "abort": 2, "error": 1},
    num_preemptions=5,
    num_prompt_tokens=100,
    num_prefilled=90,
    num_queried=80,
    num_reused=16,
    num_emitted=70,
    num_from_prefill=10,
    num_trees=30,
    num_candidates=50,
    candidates_by_position=(28, 22),
    accepted_by_position=(20, 10),
    sources={"ngram": SourceTally(20, 40, 18, 12.5, 0.1), "suffix": SourceTally(25, 45, 25, 17.5, 0.2)},
    passes={"last 1x64": 10, "all_filtered 4x2": 8},
    time_to_first_token_s=Durations((2, 0, 1, *[0] * (len(BOUNDS_S) - 3), 4), 2000.5),
)

VLLM_NAMES = {
    "e2e_request_latency_seconds",
    "generation_tokens",
    "inter_token_latency_seconds",
    "kv_cache_usage_perc",
    "num_preemptions",
    "num_requests_running",
    "num_requests_waiting",
    "prefix_cache_hits",
    "prefix_cache_queries",
    "prompt_tokens",
    "request_queue_time_seconds",
    "request_success",
    "request_time_per_output_token_seconds",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_drafts",
    "time_to_first_token_seconds",
}
OWN_NAMES = {
    "passes",
    "spec_decode_num_accepted_tokens_by_proposer",
    "spec_decode_num_draft_tokens_by_proposer",
    "prefill_tokens",
    "spec_decode_num_draft_tokens_per_pos",
    "spec_decode_num_emitted_tokens",
    "spec_decode_num_trees",
}


def registry_of(read, labels=None) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(EngineCollector(read, labels))
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"tspec:{name}", labels)


def test_the_names_are_those_of_vllm_and_a_few_of_our_own():
    families = list(text_string_to_metric_families(generate_latest(registry_of(lambda: METRICS)).decode()))
    assert {family.name for family in families} == {f"tspec:{name}" for name in VLLM_NAMES | OWN_NAMES}
    assert all(family.documentation for family in families)


def test_the_document_names_what_is_exported():
    documented = re.findall(
        r"^\| `tspec:(\w+)` \|", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.M
    )
    assert sorted(documented) == sorted(VLLM_NAMES | OWN_NAMES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("num_requests_running", 3),
        ("num_requests_waiting", 2),
        ("kv_cache_usage_perc", 0.25),
        ("num_preemptions_total", 5),
        ("prompt_tokens_total", 100),
        ("prefill_tokens_total", 90),
        ("prefix_cache_queries_total", 80),
        ("prefix_cache_hits_total", 16),
        ("generation_tokens_total", 70),
        ("spec_decode_num_trees_total", 30),
        ("spec_decode_num_emitted_tokens_total", 60),
        ("spec_decode_num_drafts_total", 28),
        ("spec_decode_num_draft_tokens_total", 50),
        ("spec_decode_num_accepted_tokens_total", 30),
    ],
)
def test_a_plain_value_is_that_of_the_snapshot(name, expected):
    assert value(registry_of(lambda: METRICS), name) == expected


def test_values_are_told_apart_by_position_reason_kind_and_bucket():
    registry = registry_of(lambda: METRICS)
    accepted = [
        value(registry, "spec_decode_num_accepted_tokens_per_pos_total", position=position)
        for position in "012"
    ]
    assert accepted == [20, 10, None]
    assert value(registry, "spec_decode_num_draft_tokens_per_pos_total", position="1") == 22
    reasons = [
        value(registry, "request_success_total", finished_reason=reason)
        for reason in ("stop", "length", "abort", "error")
    ]
    assert reasons == [4, 3, 2, 1]
    assert value(registry, "passes_total", kind="all_filtered", bucket="4x2") == 8
    of_suffix = {"proposer": "suffix"}
    assert value(registry, "spec_decode_num_draft_tokens_by_proposer_total", **of_suffix) == 45
    assert value(registry, "spec_decode_num_accepted_tokens_by_proposer_total", **of_suffix) == 25


def test_a_histogram_adds_up_from_bucket_to_bucket():
    registry = registry_of(lambda: METRICS)
    name = "time_to_first_token_seconds"
    buckets = [
        value(registry, f"{name}_bucket", le=le) for le in ("0.001", "0.002", "0.005", "500.0", "+Inf")
    ]
    assert buckets == [2, 2, 3, 3, 7]
    assert (value(registry, f"{name}_count"), value(registry, f"{name}_sum")) == (7, 2000.5)
    assert (value(registry, "e2e_request_latency_seconds_count"), value(registry, "nothing")) == (0, None)


def test_labels_are_on_every_sample():
    registry = registry_of(lambda: METRICS, {"model_name": "demo", "engine": "0"})
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert len(samples) > 100
    assert all(sample.labels.items() >= {("model_name", "demo"), ("engine", "0")} for sample in samples)


def test_each_scrape_reads_one_snapshot():
    reads = []

    def read():
        reads.append(len(reads))
        return replace(METRICS, num_emitted=len(reads))

    registry = registry_of(read)
    before = len(reads)  # registering reads the names
    generate_latest(registry)
    assert len(reads) == before + 1
    assert value(registry, "generation_tokens_total") == len(reads)


def test_an_engine_before_its_first_request_can_be_read():
    registry = registry_of(EngineMetrics)
    assert value(registry, "spec_decode_num_drafts_total") == value(registry, "kv_cache_usage_perc") == 0
    assert value(registry, "request_success_total", finished_reason="stop") == 0
    assert value(registry, "spec_decode_num_accepted_tokens_per_pos_total", position="0") is None


def test_a_model_is_read_while_it_lives_and_says_when_it_does_not(tmp_path):
    table_checkpoint(tmp_path, {}, vocab=64)
    with LLM(tmp_path, num_threads=1) as llm:
        registry = registry_of(llm.metrics, {"model_name": "table"})
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5))
        assert value(registry, "prompt_tokens_total", model_name="table") == 3
        assert value(registry, "generation_tokens_total", model_name="table") == 5
    with pytest.raises(ConfigError, match="LLM: got closed"):
        generate_latest(registry)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(ConfigError, match=r"no prometheus_client, need .*pip install 'tspec\[metrics\]'"):
        EngineCollector(EngineMetrics)
