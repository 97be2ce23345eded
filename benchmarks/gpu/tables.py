"""The record of the check as tables for people. Plain text: the machine may have no library for tables."""

from collections.abc import Iterator
from typing import Any


def lines(name: str, figures: dict[str, Any]) -> Iterator[str]:
    """One part of the record."""
    yield f"\n== {name} ({figures.get('seconds_in_all', 0):.0f} s)"
    if "skipped" in figures:
        yield f"skipped: {figures['skipped']}"
    elif "error" in figures:
        yield f"error: {figures['error']}"
    elif "buckets" in figures:
        yield from _model_lines(figures)
    elif name == "tests":
        counts = ("passed", "failed", "skipped_tests")
        yield ", ".join(f"{key.split('_')[0]} {figures[key]}" for key in counts)
        if figures["ran_out_of_time"]:
            yield "ended before the last test: out of time"
        yield from figures["failures"]
        yield from figures["tail"]
    else:
        yield ", ".join(f"{key} {value:.1f}" for key, value in figures.items() if isinstance(value, float))


def _model_lines(figures: dict[str, Any]) -> Iterator[str]:
    yield f"weights {figures['weight_bytes'] / 1e9:.2f} GB, {figures['context']} tokens of context a row"
    yield f"{'bucket':>8} {'launches':>9} {'replay us':>11} {'step us':>11} {'roofline us':>12} {'share':>7} {'MiB':>8}"
    for bucket, each in figures["buckets"].items():
        yield (
            f"{bucket:>8} {each['launches']:>9} {each['replay_us']:>11.1f} {each['step_us']:>11.1f}"
            f" {each['roofline_us']:>12.1f} {each['share_of_roofline']:>7.1%} {each['bucket_mib']:>8.2f}"
        )
    for bucket, each in figures["buckets"].items():
        if "kernels" in each:
            yield from _kernel_lines(bucket, each)
    if figures["dropped"]:
        yield f"dropped for time: {', '.join(figures['dropped'])}"
    yield from (f"bucket {bucket}: {error}" for bucket, error in figures["errors"].items())
    yield from _row_lines(figures["row_invariance"])


def _kernel_lines(bucket: str, figures: dict[str, Any]) -> Iterator[str]:
    yield f"bucket {bucket}, by kind of launch"
    for kind, each in figures["kernels"].items():
        yield (
            f"  {kind:<22} {each['launches']:>4} x {each['us_a_launch']:>9.2f} us"
            f" {each['gb_s']:>9.1f} GB/s {each['share_of_roofline']:>7.1%}"
        )
    gaps, pdl = figures["gaps"], figures["pdl"]
    yield f"  gaps: {gaps.get('skipped') or _gap_line(gaps)}"
    yield f"  PDL: {pdl.get('skipped') or _pdl_line(pdl)}"


def _gap_line(gaps: dict[str, Any]) -> str:
    return f"{gaps['kernels']} kernels, {gaps['kernels_us']:.1f} us, mean gap {gaps['mean_gap_us']:.2f} us"


def _pdl_line(pdl: dict[str, Any]) -> str:
    same = "same outputs" if pdl["same_outputs"] else "OTHER OUTPUTS"
    return f"off {pdl['off_us']:.1f} us, on {pdl['on_us']:.1f} us ({pdl['gain']:+.1%}), {same}"


def _row_lines(figures: dict[str, Any]) -> Iterator[str]:
    if "skipped" in figures:
        yield f"row invariance: skipped: {figures['skipped']}"
        return
    for name, each in figures.items():
        rows = ", ".join(f"{key}: {value}" for key, value in each["rows"].items())
        yield f"row invariance, {name}: {'yes' if each['same_bits'] else 'NO'} ({rows})"
