"""Draws the figure of the README from a record of benchmarks/decode.py: speed-up by category, and what a pass costs.

Run: python -m benchmarks.figure benchmarks/results/decode-avx512.json docs/decode.svg
"""

import argparse
import json
from pathlib import Path

import matplotlib
from matplotlib import pyplot

matplotlib.use("Agg")


def draw(record: dict, target: Path) -> None:
    """Write the figure as SVG."""
    figure, (speed, cost) = pyplot.subplots(
        1, 2, figsize=(10, 3.8), width_ratios=(2, 1), layout="constrained"
    )
    rows = sorted(record["speculation"]["by_category"].items(), key=lambda row: row[1]["speed_up"])
    bars = speed.barh([name for name, _ in rows], [row["speed_up"] for _, row in rows], color="#3b6ea5")
    speed.bar_label(bars, fmt="%.2fx", padding=3, fontsize=8)
    speed.axvline(1.0, color="black", linewidth=0.8)
    speed.set_title("speculation (auto) over plain decoding, same text", fontsize=10)
    speed.margins(x=0.1)
    for context, row in record["passes"]["pass_cost"].items():
        cost.plot(
            [int(nodes) for nodes in row], list(row.values()), marker="o", label=f"{context} tokens before"
        )
    cost.set_ylim(bottom=0)
    cost.set_xlabel("nodes verified in one pass")
    cost.set_title("cost of a verify pass, over one node", fontsize=10)
    cost.legend(fontsize=8)
    figure.suptitle(f"{record['model']}, bfloat16, {record['machine']}", fontsize=9)
    figure.savefig(target)


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    draw(json.loads(args.record.read_text()), args.target)


if __name__ == "__main__":
    main()
