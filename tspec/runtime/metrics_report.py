"""Says every few seconds what the engine did since: to the log, and to whoever asked for its metrics."""

import logging
import time
from collections.abc import Callable

from tspec.runtime.metrics import EngineMetrics

_log = logging.getLogger("tspec")

OnMetrics = Callable[[EngineMetrics], None]
"""Called with a snapshot. What it raises goes to the log, and no further."""


class MetricsReport:
    """When to report and to whom. Between two reports a step costs one look at the clock.

    on_metrics  gets all that was counted from the start; the log, at level INFO, what was since the last report
    """

    def __init__(self, on_metrics: OnMetrics | None, interval_s: float) -> None:
        self._on_metrics = on_metrics
        self._interval_s = interval_s
        self._next_s = time.perf_counter() + interval_s
        self._last = EngineMetrics()
        self._has_news = False

    def poll(self, read: Callable[[], EngineMetrics]) -> None:
        """Report if it is time; call after each step."""
        self._has_news = True
        if time.perf_counter() >= self._next_s:
            self._next_s = time.perf_counter() + self._interval_s
            self._report(read)

    def finish(self, read: Callable[[], EngineMetrics]) -> None:
        """Report what came after the last report, if there was a step since."""
        if self._has_news:
            self._report(read)

    def _report(self, read: Callable[[], EngineMetrics]) -> None:
        self._has_news = False
        if self._on_metrics is None and not _log.isEnabledFor(logging.INFO):
            return
        metrics = read()
        _log.info("%s", log_line(metrics.since(self._last)))
        self._last = metrics
        if self._on_metrics is not None:
            try:
                self._on_metrics(metrics)
            except Exception:  # the caller's own code: no reason to lose requests
                _log.exception("on_metrics failed; it is called again with the next metrics.")


def log_line(metrics: EngineMetrics) -> str:
    """What happened in the seconds that the counts cover, in one line."""
    seconds = max(metrics.elapsed_s, 1e-9)
    parts = [
        f"{metrics.elapsed_s:.1f} s",
        f"prefill {metrics.num_prefilled / seconds:.1f} tokens/s",
        f"output {metrics.num_emitted / seconds:.1f} tokens/s",
        f"running {metrics.num_running}",
        f"waiting {metrics.num_waiting}",
        f"KV {metrics.kv_usage:.1%}",
    ]
    if metrics.reuse_rate is not None:
        parts.append(f"prefix hits {metrics.reuse_rate:.1%}")
    if metrics.num_preemptions:
        parts.append(f"preemptions {metrics.num_preemptions}")
    if metrics.acceptance_rate is not None:
        parts.append(f"acceptance {metrics.acceptance_rate:.1%} of {metrics.num_candidates} candidates")
    if metrics.tokens_per_pass is not None:
        parts.append(f"tokens per pass {metrics.tokens_per_pass:.2f}")
    return ", ".join(parts)
