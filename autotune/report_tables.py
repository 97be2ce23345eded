"""What is in a policy, as tables for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tspec.core.policy import Policy
from tspec.kernels.tuned_store import readable_entries

LABELS = {"norm_linear_silu_mul": "gate/up", "norm_linear": "q/k/v", "rope_attention": "attention"}
MOST_DEPTHS = 8
"""Depths that are shown: beyond, few rounds say anything."""


def print_policy(policy: Policy) -> None:
    """Print all tables of a policy."""
    console = Console()
    key = policy.key
    console.print(
        f"{policy.source}: {policy.figures.get('model', '-')}, {key.dtype}, {key.device}, {key.backend}"
    )
    for table in tables_of(policy):
        console.print(table)


def tables_of(policy: Policy) -> list[Table]:
    """What a policy found."""
    return [methods_table(policy), passes_table(policy), acceptance_table(policy)]


def methods_table(policy: Policy) -> Table:
    """What each method does by default now, and what that gives."""
    table = Table(
        "method", "candidates", "levels", "of a node", "predicted", "measured", title="speed-up by method"
    )
    for name, each in policy.methods.items():
        table.add_row(
            name,
            "what pays" if name == "auto" else str(each.num_candidates),
            "-" if each.depth is None else str(each.depth),
            str(each.width),
            f"{each.predicted_speed_up:.2f}x",
            "-" if each.measured_speed_up is None else f"{each.measured_speed_up:.2f}x",
        )
    return table


def passes_table(policy: Policy) -> Table:
    """What a pass of one sequence takes by its nodes, on a short context and for each 1,000 tokens of it."""
    costs = policy.costs
    table = Table("nodes", "ms", "over one node", "ms a 1,000 tokens of context", title="verify pass")
    for nodes, seconds, context_s in zip(costs.nodes, costs.seconds, costs.context_s, strict=True):
        table.add_row(
            str(nodes),
            f"{1e3 * seconds:.2f}",
            f"{seconds / costs.seconds[0]:.2f}x",
            f"{1e6 * context_s:.2f}",
        )
    return table


def acceptance_table(policy: Policy) -> Table:
    """How often a candidate is right where all before it are: by depth, siblings together."""
    methods: dict[str, Any] = policy.figures.get("methods", {})
    depths = min(MOST_DEPTHS, max((len(each["chances"]) for each in methods.values()), default=0))
    table = Table(
        "method", *(str(depth) for depth in range(1, depths + 1)), title="right candidates by depth"
    )
    for name, each in methods.items():
        cells = [f"{sum(row):.0%}" for row in each["chances"][:depths]]
        table.add_row(name, *cells, *[""] * (depths - len(cells)))
    return table


def kernels_table(policy: Policy) -> Table:
    """Launches of a pass by what they do, beside the least time that this machine's memory and arithmetic allow."""
    table = Table("launches", "weights", "ms", "roofline ms", "of it", "bound by", title="kernels of a pass")
    for row in kernel_rows(policy.figures):
        table.add_row(
            f"{row['count']} x {row['name']}",
            " x ".join(map(str, row["shape"])) or "-",
            f"{1e3 * row['seconds']:.2f}",
            f"{1e3 * row['bound_s']:.2f}",
            f"{row['bound_s'] / row['seconds']:.0%}",
            row["bound"],
        )
    return table


def kernel_rows(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Kinds of launches of the widest pass that was taken apart, with the least time that the machine allows."""
    timed: dict[str, list[dict[str, Any]]] = figures.get("kernels", {})
    if not timed:
        return []
    widest = max(timed, key=int)
    rows = []
    for each in timed[widest]:
        read_s = each["bytes_moved"] / figures["read_gb_s"] / 1e9
        compute_s = each["flops"] / figures["tflops"] / 1e12
        name = LABELS.get(each["kind"], each["kind"])
        if each["kind"] == "linear_add":
            name = "attention out" if each["shape"][0] == each["shape"][1] else "down"
        if "head" in each["kind"]:
            name = "head"
        bound = "memory" if read_s > compute_s else "arithmetic"
        rows.append(
            {**each, "name": name, "nodes": int(widest), "bound_s": max(read_s, compute_s), "bound": bound}
        )
    return sorted(rows, key=lambda row: -row["seconds"])


def tuned_table(file: Path) -> Table:
    """The kernel configurations that `tspec autotune kernels` found, as they stand in the user's file."""
    table = Table("device", "op", "dtype", "shape", "configuration", title=f"tuned kernels in {file}")
    for key, config in readable_entries(file):
        shape = " ".join(f"{name}={size}" for name, size in key.shape)
        table.add_row(
            key.device, key.op, key.dtype, shape, " ".join(f"{name}={each}" for name, each in config.items())
        )
    return table
