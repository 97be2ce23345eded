"""What `--stats` prints."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from tspec.core.proposer import SourceTally

if TYPE_CHECKING:
    from tspec.llm import Result
    from tspec.runtime.metrics import EngineMetrics


def stats_table(result: "Result", metrics: "EngineMetrics") -> Table:
    """The figures of one result, for people. `metrics` are those of an engine that ran nothing else."""
    stats = result.stats
    table = Table(title="decoding", show_header=False)
    rows = {
        "prompt tokens": len(result.prompt_token_ids),
        "computed, reused": f"{stats.num_prefilled}, {stats.num_reused}",
        "emitted tokens": stats.num_emitted,
        "finish reason": result.finish_reason,
        "seed": "-" if result.seed is None else result.seed,
        "queue time": _number(stats.queue_s, "{:.3f} s"),
        "time to first token": _number(stats.time_to_first_token_s, "{:.3f} s"),
        "tokens/s": _number(stats.tokens_per_second, "{:.1f}"),
        "verify passes": stats.num_passes,
        "tokens per pass": _number(stats.tokens_per_pass, "{:.2f}"),
        "candidates": stats.num_candidates,
        "acceptance rate": _number(stats.acceptance_rate, "{:.0%}"),
        "accepted by position": " ".join(
            f"{accepted}/{candidates}"
            for accepted, candidates in zip(
                stats.accepted_by_position, stats.candidates_by_position, strict=True
            )
        )
        or "-",
        "drafting / verifying": _number(stats.rounds.cost_ratio, "{:.2f} of the time"),
        "speed-up of rounds with candidates": f"{_number(stats.rounds.measured_speed_up, '{:.2f}x')} measured, "
        f"{_number(stats.rounds.expected_speed_up, '{:.2f}x')} expected",
        "preemptions": stats.num_preemptions,
        "passes": ", ".join(f"{key}: {count}" for key, count in metrics.passes.items()) or "-",
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def sources_table(sources: Mapping[str, SourceTally]) -> Table:
    """What each proposer tried, what of it was accepted, and how many plain passes that saved."""
    table = Table(
        "proposer", "passes tried", "candidates", "accepted", "passes saved", "time", title="by proposer"
    )
    for name, tally in sources.items():
        rate = tally.num_accepted / tally.num_candidates if tally.num_candidates else None
        table.add_row(
            name,
            str(tally.num_trees),
            str(tally.num_candidates),
            f"{tally.num_accepted} ({_number(rate, '{:.0%}')})",
            f"{tally.num_saved:.1f}",
            f"{1000 * tally.seconds:.1f} ms",
        )
    return table
