"""One command for a machine with a CUDA device: the tests, every bucket against the roofline, row invariance.

Needs no network and no checkpoint: weights are random, made on the device. With `--device interpret` the same code
runs a tiny model in Triton's interpreter (TRITON_INTERPRET=1 has to be set): its times mean nothing.

Run: python -m benchmarks.gpu_check [--json FILE] [--device cuda|interpret] [--quick]
"""

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.stand_in import stand_in

if TYPE_CHECKING:
    from benchmarks.gpu.parts import Part, Setting

BUDGET_S = 460.0
"""For everything; parts that come later are dropped, and say so."""

LEAST_S = 2.0
"""With less time left a part is not begun."""


def make_setting(device: str, is_quick: bool) -> "Setting":
    """The device to run on. Exits where there is none."""
    import torch

    from benchmarks.gpu.parts import Setting

    if device == "interpret":
        if os.environ.get("TRITON_INTERPRET") != "1":
            sys.exit("TRITON_INTERPRET: got nothing, need 1. Set it for --device interpret.")
        return Setting(torch.device("cpu"), "sm_80", is_quick)
    if not torch.cuda.is_available():
        sys.exit("device: got no CUDA device, need one that torch can use. Run this on another machine.")
    major, minor = torch.cuda.get_device_capability()
    return Setting(torch.device("cuda", torch.cuda.current_device()), f"sm_{major}{minor}", is_quick)


def run_part(name: str, part: "Part", setting: "Setting", limit_s: float) -> dict[str, object]:
    """Figures of one part. A part that fails is a finding of its own, and the others still run."""
    start = time.perf_counter()
    try:
        figures = part(setting, limit_s)
    except ModuleNotFoundError as error:
        figures = {"skipped": f"{error.name} missing"}
    except Exception as error:
        figures = {
            "error": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc().splitlines(),
        }
    return figures | {"seconds_in_all": time.perf_counter() - start}


def check(setting: "Setting", budget_s: float, file: Path | None) -> dict[str, object]:
    """Run all parts within the budget: each may take its share, and what those before it left over."""
    from benchmarks.gpu import parts, tables

    end = time.perf_counter() + budget_s
    record: dict[str, object] = {"machine": parts.describe(setting)}
    print(json.dumps(record["machine"]))
    wanted = parts.parts(setting)
    later = sum(limit for _, limit in wanted.values())
    for name, (part, limit) in wanted.items():
        later -= limit
        left = end - time.perf_counter()
        may_take = max(min(limit, left), left - later)
        if may_take < LEAST_S:
            figures: dict[str, object] = {"skipped": "no time left"}
        else:
            figures = run_part(name, part, setting, may_take)
        record[name] = figures
        print("\n".join(tables.lines(name, figures)), flush=True)
        if file:  # after each part, so that a run which is ended leaves a record
            file.write_text(json.dumps(record, indent=1) + "\n")
    return record


def _has_failed(figures: dict[str, object]) -> bool:
    return "error" in figures or bool(figures.get("errors")) or figures.get("exit_code", 0) != 0


def main() -> None:
    """Check and print; exits with 1 where a test or a part failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--device", choices=("cuda", "interpret"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="few buckets")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for everything")
    args = parser.parse_args()
    replaced = stand_in()
    if replaced:
        print(f"missing and stood in for: {', '.join(replaced)}")
    record = check(make_setting(args.device, args.quick), args.budget, args.json)
    failed = [name for name, figures in record.items() if isinstance(figures, dict) and _has_failed(figures)]
    sys.exit(f"\nfailed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
