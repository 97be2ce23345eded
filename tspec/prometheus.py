"""An engine's metrics for Prometheus, under the names that vLLM has for them, with `tspec:` in place of `vllm:`.

    from prometheus_client import REGISTRY, start_http_server
    from tspec.prometheus import EngineCollector
    REGISTRY.register(EngineCollector(llm.metrics, {"model_name": "demo"}))
    start_http_server(9090)

Needs prometheus_client, an optional package (`pip install 'tspec[metrics]'`). Serves nothing by itself: each scrape
reads one snapshot, from whichever thread it comes.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tspec.core.errors import ConfigError
from tspec.runtime.metrics import BOUNDS_S, Durations, EngineMetrics

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily, Metric

Samples = Mapping[tuple[str, ...], float]
"""Values by those of their labels."""

GAUGES: Mapping[str, tuple[str, Callable[[EngineMetrics], float]]] = {
    "num_requests_running": ("Requests that hold KV blocks.", lambda metrics: metrics.num_running),
    "num_requests_waiting": ("Requests without KV blocks.", lambda metrics: metrics.num_waiting),
    "kv_cache_usage_perc": (
        "KV blocks that requests refer to; 1 is all of them.",
        lambda metrics: metrics.kv_usage,
    ),
}

COUNTERS: Mapping[str, tuple[str, Callable[[EngineMetrics], float]]] = {
    "num_preemptions": (
        "Requests that gave their KV blocks to others.",
        lambda metrics: metrics.num_preemptions,
    ),
    "prompt_tokens": (
        "Prompt tokens of requests that got a token.",
        lambda metrics: metrics.num_prompt_tokens,
    ),
    "prefill_tokens": (
        "Tokens that prefill computed, those of preempted requests again.",
        lambda metrics: metrics.num_prefilled,
    ),
    "prefix_cache_queries": ("Tokens looked up in shared KV blocks.", lambda metrics: metrics.num_queried),
    "prefix_cache_hits": ("Tokens found there, which needed no pass.", lambda metrics: metrics.num_reused),
    "generation_tokens": ("Tokens given to requests.", lambda metrics: metrics.num_emitted),
    "spec_decode_num_trees": (
        "Candidate trees verified, one a request and verify pass.",
        lambda metrics: metrics.num_trees,
    ),
    "spec_decode_num_emitted_tokens": (
        "Tokens given to requests by verify passes; over spec_decode_num_trees: tokens per pass.",
        lambda metrics: metrics.num_emitted - metrics.num_from_prefill,
    ),
    "spec_decode_num_drafts": ("Candidate trees with candidates.", lambda metrics: metrics.num_drafts),
    "spec_decode_num_draft_tokens": ("Candidates verified.", lambda metrics: metrics.num_candidates),
    "spec_decode_num_accepted_tokens": ("Candidates accepted.", lambda metrics: metrics.num_accepted),
}

LABELED: Mapping[str, tuple[str, tuple[str, ...], Callable[[EngineMetrics], Samples]]] = {
    "spec_decode_num_draft_tokens_per_pos": (
        "Candidate trees with a candidate at this position, from 0.",
        ("position",),
        lambda metrics: _by_position(metrics.candidates_by_position),
    ),
    "spec_decode_num_accepted_tokens_per_pos": (
        "Candidate trees of which a candidate at this position, from 0, was accepted.",
        ("position",),
        lambda metrics: _by_position(metrics.accepted_by_position),
    ),
    "request_success": (
        "Requests that ended, in error, too.",
        ("finished_reason",),
        lambda metrics: {(reason,): count for reason, count in metrics.requests.items()},
    ),
    "spec_decode_num_draft_tokens_by_proposer": (
        "Candidates verified, by who gave them; those of several count for each.",
        ("proposer",),
        lambda metrics: {(name,): tally.num_candidates for name, tally in metrics.sources.items()},
    ),
    "spec_decode_num_accepted_tokens_by_proposer": (
        "Candidates that became text, by who gave them; those of several count for each.",
        ("proposer",),
        lambda metrics: {(name,): tally.num_accepted for name, tally in metrics.sources.items()},
    ),
    "passes": (
        "Passes that ran.",
        ("kind", "bucket"),
        lambda metrics: {tuple(key.split()): count for key, count in metrics.passes.items()},
    ),
}

HISTOGRAMS: Mapping[str, tuple[str, Callable[[EngineMetrics], Durations]]] = {
    "request_queue_time_seconds": (
        "From a request to its first KV blocks.",
        lambda metrics: metrics.queue_s,
    ),
    "time_to_first_token_seconds": (
        "From a request to its first token.",
        lambda metrics: metrics.time_to_first_token_s,
    ),
    "inter_token_latency_seconds": (
        "From tokens of a request to its next; those that came together count once.",
        lambda metrics: metrics.inter_token_s,
    ),
    "request_time_per_output_token_seconds": (
        "Mean of a request, after its first token.",
        lambda metrics: metrics.time_per_token_s,
    ),
    "e2e_request_latency_seconds": ("From a request to its end.", lambda metrics: metrics.e2e_s),
}


class EngineCollector:
    """A collector for `CollectorRegistry.register`.

    read     returns a snapshot: `llm.metrics` or `engine.metrics`
    labels   put on every sample, as `{"model_name": …}`

    Errors   ConfigError where prometheus_client is not installed
    """

    def __init__(self, read: Callable[[], EngineMetrics], labels: Mapping[str, str] | None = None) -> None:
        self._families = _need_library()
        self._read = read
        self._names, self._values = list(labels or {}), list((labels or {}).values())

    def collect(self) -> "Iterator[Metric]":
        """Yield all metrics of one snapshot."""
        metrics = self._read()
        for name, (text, value) in GAUGES.items():
            yield self._fill(self._families.GaugeMetricFamily, name, text, (), {(): value(metrics)})
        for name, (text, value) in COUNTERS.items():
            yield self._fill(self._families.CounterMetricFamily, name, text, (), {(): value(metrics)})
        for name, (text, labels, values) in LABELED.items():
            yield self._fill(self._families.CounterMetricFamily, name, text, labels, values(metrics))
        for name, (text, durations) in HISTOGRAMS.items():
            yield self._histogram(name, text, durations(metrics))

    def _fill(
        self,
        family: Callable[..., Any],
        name: str,
        text: str,
        labels: tuple[str, ...],
        samples: Samples,
    ) -> "Metric":
        metric = family(f"tspec:{name}", text, labels=[*self._names, *labels])
        for values, sample in samples.items():
            metric.add_metric([*self._values, *values], sample)
        return metric

    def _histogram(self, name: str, text: str, durations: Durations) -> "HistogramMetricFamily":
        metric = self._families.HistogramMetricFamily(f"tspec:{name}", text, labels=self._names)
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
        metric.add_metric(self._values, buckets, durations.total_s)
        return metric


def _by_position(counts: tuple[int, ...]) -> Samples:
    return {(str(position),): count for position, count in enumerate(counts)}


def _need_library() -> ModuleType:
    try:
        return import_module("prometheus_client.core")
    except ImportError as error:
        raise ConfigError(
            "metrics for Prometheus",
            got="no prometheus_client",
            need="the package that serves them",
            fix="Run `pip install 'tspec[metrics]'`.",
        ) from error
