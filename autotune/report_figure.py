"""The picture of a policy: kernels, passes, acceptance, speed-ups, and where speculation does not pay."""

from typing import Any

import numpy as np

from autotune.pays import least_chances, speed_ups
from autotune.report_tables import kernel_rows
from tspec.core.policy import Policy

COLOURS = ("#3b6ea5", "#c8553d", "#588157", "#8d6a9f", "#b08900", "#4a4e69")
CONTEXT = 512
"""Tokens of context that the map of what pays is drawn for."""
MOST_CANDIDATES, MOST_DEPTHS = 15, 8
CHAINS = (1, 3, 7)


def draw(policy: Policy, module: Any) -> Any:
    """Return the figure. `module` is matplotlib.figure."""
    figure = module.Figure(figsize=(13, 8), layout="constrained")
    (kernels, passes, accepted), (speed, pays, batches) = figure.subplots(2, 3)
    _kernels(kernels, policy.figures)
    _passes(passes, policy.figures)
    _accepted(accepted, policy.figures)
    _speed(speed, policy)
    _pays(pays, policy)
    _batches(batches, policy.figures)
    for axes in (kernels, passes, accepted, speed, batches):
        axes.spines[["top", "right"]].set_visible(False)
    key = policy.key
    title = f"{policy.figures.get('model', '-')}, {key.dtype}, {key.device}, {key.backend}"
    figure.suptitle(title, fontsize=10)
    return figure


def _kernels(axes: Any, figures: Any) -> None:
    rows = [row for row in kernel_rows(figures) if row["count"] > 1 or row["name"] == "head"]
    if not rows:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no kernels were timed", ha="center", va="center")
        return
    places = np.arange(len(rows))
    axes.barh(places - 0.2, [1e3 * row["seconds"] for row in rows], 0.4, color=COLOURS[0], label="measured")
    for bound, colour in (("memory", "#b7c9de"), ("arithmetic", "#e6b8a2")):
        mine = [place for place in places if rows[place]["bound"] == bound]
        least = [1e3 * rows[place]["bound_s"] for place in mine]
        if mine:
            axes.barh(np.array(mine) + 0.2, least, 0.4, color=colour, label=f"roofline, {bound}")
    axes.set_yticks(places, [f"{row['count']} x {row['name']}" for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_title(f"launches of a pass of {rows[0]['nodes']} nodes", fontsize=10)
    axes.legend(fontsize=8)


def _passes(axes: Any, figures: Any) -> None:
    series: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for each in figures["passes"]:
        if each["rows"] in (1, 4):
            series.setdefault((each["rows"], each["context"]), []).append((each["nodes"], each["seconds"]))
    for number, ((rows, context), points) in enumerate(sorted(series.items())):
        nodes, seconds = zip(*sorted(points), strict=True)
        name = f"{rows} sequence{'s' * (rows > 1)}, {context:,} tokens"
        style = "-" if rows == 1 else "--"
        axes.plot(
            nodes,
            [1e3 * each for each in seconds],
            style,
            marker="o",
            ms=3,
            color=COLOURS[number],
            label=name,
        )
    axes.set(xlabel="nodes a sequence", ylabel="ms")
    axes.set_ylim(bottom=0)
    axes.set_title("verify pass", fontsize=10)
    axes.legend(fontsize=8, loc="upper left")


def _accepted(axes: Any, figures: Any) -> None:
    for number, (name, each) in enumerate(figures["methods"].items()):
        reached = np.array(each["reached"][:MOST_DEPTHS])
        shares = [sum(row) for row in each["chances"][:MOST_DEPTHS]]
        depths = np.arange(1, len(shares) + 1)
        often = reached >= 10  # fewer say nothing
        axes.plot(depths[often], np.array(shares)[often], marker="o", ms=4, color=COLOURS[number], label=name)
    axes.set(xlabel="depth", ylim=(0, 1))
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_title("a candidate is right, where all before it are", fontsize=10)
    axes.legend(fontsize=8, loc="lower right")


def _speed(axes: Any, policy: Policy) -> None:
    names, places = list(policy.methods), np.arange(len(policy.methods))
    predicted = [each.predicted_speed_up for each in policy.methods.values()]
    measured = [each.measured_speed_up or 0.0 for each in policy.methods.values()]
    for shift, values, colour, label in (
        (-0.2, predicted, "#b7c9de", "predicted"),
        (0.2, measured, COLOURS[0], "measured on other prompts"),
    ):
        bars = axes.bar(places + shift, values, 0.4, color=colour, label=label)
        axes.bar_label(bars, fmt=lambda value: f"{value:.2f}x" if value else "", fontsize=8)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(places, names)
    axes.margins(y=0.35)
    axes.set_title("over plain decoding", fontsize=10)
    axes.legend(fontsize=8, loc="upper left")


def _pays(axes: Any, policy: Policy) -> None:
    chances = np.linspace(0.05, 0.95, 19)
    values = speed_ups(policy.costs, CONTEXT, chances.tolist(), MOST_CANDIDATES)
    candidates = np.arange(1, MOST_CANDIDATES + 1)
    limit = max(1.5, float(values.max()))
    levels = np.concatenate([np.linspace(0.4, 1.0, 7), np.linspace(1.0, limit, 7)[1:]])
    from matplotlib.colors import TwoSlopeNorm  # the module was asked for before

    norm = TwoSlopeNorm(1.0, vmin=0.4, vmax=limit)
    shades = axes.contourf(candidates, chances, values, levels=levels, cmap="RdYlBu", norm=norm, extend="min")
    lines = axes.contour(candidates, chances, values, levels=[1.0], colors="black", linewidths=1.2)
    axes.clabel(lines, fmt="1x", fontsize=8)
    axes.figure.colorbar(shades, ax=axes, format="%.1fx")
    axes.set(xlabel="candidates of a chain", ylabel="chance of a candidate")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_title(f"one sequence, {CONTEXT} tokens: below 1x it does not pay", fontsize=10)


def _batches(axes: Any, figures: Any) -> None:
    short = {
        (each["rows"], each["nodes"]): each["seconds"] for each in figures["passes"] if each["context"] == 0
    }
    for number, count in enumerate(CHAINS):
        rows, chances = least_chances(short, count)
        found = [(row, chance) for row, chance in zip(rows, chances, strict=True) if chance is not None]
        if found:
            label = f"{count} candidate{'s' * (count > 1)}"
            axes.plot(*zip(*found, strict=True), marker="o", color=COLOURS[number], label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set(xlabel="sequences together", ylim=(0, 1))
    axes.set_title("chance from which candidates pay", fontsize=10)
    axes.legend(fontsize=8)
