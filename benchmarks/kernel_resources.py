"""What every cuda kernel needs of each part, as the markdown table of docs/kernels.md. Needs no GPU, asserts nothing.

Run: python -m benchmarks.kernel_resources [--arch sm_90] [--kernel norm_linear]
"""

import argparse

import triton

from tspec.kernels.cuda.cases import aot_cases
from tspec.kernels.cuda.resources import TARGETS, read_case

HEADER = "| kernel | part | tile, split, warps, stages | registers | spilled B | shared KiB | products |"


def configuration(case) -> str:
    """The constants and options of a case that a reader wants: `16x64x128, 4, 4, 4`."""
    sizes = [case.constexprs.get(name) for name in ("M_TILE", "BLOCK_N", "BLOCK_K")]
    tile = "x".join(str(size) for size in sizes if size is not None) or "-"
    others = (
        case.constexprs.get("SPLIT_K", 1),
        case.options.get("num_warps", 4),
        case.options.get("num_stages", "-"),
    )
    return ", ".join(map(str, (tile, *others)))


def main() -> None:
    """Compile what was asked for and print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", choices=TARGETS, help="one part only")
    parser.add_argument("--kernel", default="", help="cases whose name begins so")
    args = parser.parse_args()
    print(f"Compiled with Triton {triton.__version__}; nothing was run.\n\n{HEADER}\n|-|-|-|-|-|-|-|")
    for case in aot_cases():
        if case.name.startswith(args.kernel) and args.arch in (None, case.arch):
            reading = read_case(case)
            products = f"{reading.num_tensor_core} {reading.tensor_core}" if reading.tensor_core else "none"
            print(
                f"| {case.name} | {case.arch} | {configuration(case)} | {reading.registers} | "
                f"{reading.spilled_bytes} | {reading.shared_bytes / 1024:.1f} | {products} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
