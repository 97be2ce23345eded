"""`tspec autotune report POLICY --html page.html --png picture.png`: what was measured, for people."""

import argparse
import html
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autotune.policy_figures import checked_figures
from autotune.report_tables import kernels_table, print_policy, tables_of, tuned_table
from tspec.checkpoint.policy_file import read_policy
from tspec.core.policy import Policy
from tspec.core.whole_files import replace_text
from tspec.kernels.tuned_store import tuned_file

STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em}h2{font-size:1.1em;margin:1.6em 0 .4em}svg{width:100%;height:auto}p{color:#555}
table{border-collapse:collapse;font-size:.9em}th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}
th:first-child,td:first-child{text-align:left}th{background:#f3f5f8}"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = subparsers.add_parser("report", help="show a policy as tables, a page and a picture")
    parser.add_argument("policy", type=Path, help="file of `tspec autotune policy`")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one page that needs no other file")
    parser.add_argument("--png", type=Path, metavar="FILE", help="write the picture")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the tables; write page and picture where they are asked for."""
    policy = read_policy(args.policy)
    policy = replace(policy, figures=checked_figures(policy))
    tuned = tuned_table(tuned_file())
    print_policy(policy)
    for table in (kernels_table(policy), tuned):
        Console().print(table)
    if args.html or args.png:
        svg = _draw(policy, args.png)
        if args.html:
            replace_text(args.html, page(policy, [*tables_of(policy), kernels_table(policy), tuned], svg))
    return 0


def _draw(policy: Policy, png: Path | None) -> str:
    """The picture as SVG; and as PNG in a file. Errors: ConfigError where matplotlib is not installed"""
    from autotune.report_figure import draw  # an extra of the package
    from tspec.training.plot import need_matplotlib

    figure, svg = draw(policy, need_matplotlib()), io.StringIO()
    figure.savefig(svg, format="svg")
    if png is not None:
        figure.savefig(png, dpi=100)
    return svg.getvalue()[svg.getvalue().index("<svg") :]


def page(policy: Policy, tables: Sequence[Table], svg: str) -> str:
    """One HTML page with the picture and the tables in it."""
    key = policy.key
    title = f"{policy.figures.get('model', '-')} on {key.device}"
    tuned, tried = policy.figures.get("num_prompts", (0, 0))
    about = (
        f"{key.dtype}, {key.backend}, {key.threads} threads, {key.libraries}. Made from {tuned} prompts, tried on "
        f"{tried} others, {policy.figures.get('max_tokens', 0)} tokens each at most."
    )
    body = "\n".join(_as_html(table) for table in tables)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1><p>{html.escape(about)}</p>\n"
        f"{svg}\n{body}</body></html>\n"
    )


def _as_html(table: Table) -> str:
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    heads = "".join(f"<th>{html.escape(str(column.header))}</th>" for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in zip(*columns, strict=True)
    )
    return f"<h2>{html.escape(str(table.title))}</h2><table><tr>{heads}</tr>{rows}</table>"
