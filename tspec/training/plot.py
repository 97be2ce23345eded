"""A picture of a run: loss and acceptance by step, over the updates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tspec.core.errors import ConfigError
from tspec.training.train import Record

WINDOW = 25
"""Updates whose mean a point of a line is."""


def need_matplotlib() -> Any:
    """The module that draws.  Errors: ConfigError where matplotlib is not installed"""
    try:
        from matplotlib import figure  # slow to import, and an extra of the package
    except ImportError as error:
        raise ConfigError(
            "matplotlib", got="not installed", need="it, to draw loss and acceptance",
            fix="Install it: pip install 'tspec[train]'.",
        ) from error  # fmt: skip
    return figure


def plot_records(records: Sequence[Record], file: Path) -> None:
    """Draw the records of a run into a PNG; those of texts kept from training are points."""
    picture = need_matplotlib().Figure(figsize=(10, 4), layout="constrained")
    for axes, name in zip(picture.subplots(1, 2), ("loss", "acceptance"), strict=True):
        for step in range(len(records[0].loss)):
            trained, held_out = (
                [(each.update, getattr(each, name)[step]) for each in records if each.is_held_out is kind]
                for kind in (False, True)
            )
            line = axes.plot(*zip(*_smooth(trained), strict=True), label=f"step {step + 1}")
            if held_out:
                axes.plot(*zip(*held_out, strict=True), "o", color=line[0].get_color())
        axes.set(xlabel="updates", ylabel=name)
        axes.legend(title="points: texts kept from training", title_fontsize="small")
    picture.savefig(file, dpi=110)


def _smooth(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The mean of each point and those before it, as far as the window goes."""
    smooth = []
    for place, (update, _) in enumerate(points):
        window = [value for _, value in points[max(0, place - WINDOW + 1) : place + 1]]
        smooth.append((update, sum(window) / len(window)))
    return smooth
