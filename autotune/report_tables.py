"""What is in a policy, as tables for people."""

from typing import Any

from rich.console import Console
from rich.table import Table

from tspec.core.policy import Policy


def print_policy(policy: Policy) -> None:
    """Print all tables of a policy."""
    console = Console()
    key = policy.key
    console.print(
        f"{policy.source}: {policy.figures.get('model', '-')}, {key.dtype}, {key.device}, {key.backend}"
    )
    for table in (methods_table(policy), passes_table(policy), acceptance_table(policy)):
        console.print(table)


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
    depths = max((len(each["chances"]) for each in methods.values()), default=0)
    table = Table(
        "method", *(str(depth) for depth in range(1, depths + 1)), title="right candidates by depth"
    )
    for name, each in methods.items():
        cells = [f"{sum(row):.0%}" for row in each["chances"]]
        table.add_row(name, *cells, *[""] * (depths - len(cells)))
    return table
