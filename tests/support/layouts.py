"""How sums lie in the registers, lanes and warps of a compiled kernel: the layout is the order of summation."""

import re


def layouts_of_squares(ttgir: str) -> set[str]:
    """How the squares [M_TILE, runs, 8] of 16-bit rows lie in threads, the axis of rows left out."""
    layouts = dict(re.findall(r"^(#\w+) = #ttg\.blocked<\{(.*)\}>", ttgir, re.MULTILINE))
    used = set(re.findall(r"tensor<\d+x\d+x8xf32, (#\w+)>", ttgir))
    return {re.sub(r"\[\d+, (\d+, \d+)\]", r"[\1]", layouts[name].split(", order")[0]) for name in used}


def slots_in_threads(ttgir: str) -> set[tuple]:
    """How the 64 slots of every score tile that is reduced lie in registers, lanes and warps; rows left out."""
    layouts = dict(re.findall(r"^(#\w+) = #(?:ttg|ttng)\.(.*)$", ttgir, re.MULTILINE))
    reduced = re.findall(r"\(tensor<64x\d+xf32, (#\w+)>\) -> tensor<\d+xf32, #ttg\.slice<\{dim = 0", ttgir)
    assert len(reduced) >= 4, (
        "the largest score and the sum of weights, in the loop over the prefix and over nodes"
    )
    return {slots(layouts[name]) for name in reduced}


def slots(layout: str) -> tuple:
    """The part of a layout that says where slots lie: what it says of the first axis."""
    if layout.startswith("linear"):
        bases = {
            name: re.findall(r"\[(\d+), \d+\]", part)
            for name, part in re.findall(r"(register|lane|warp) = \[((?:\[\d+, \d+\](?:, )?)*)\]", layout)
        }
        return (
            "linear",
            *(base for base in bases["register"] if base != "0"),
            *bases["lane"],
            *bases["warp"],
        )
    warps = re.search(r"warpsPerCTA = \[(\d+), (\d+)\]", layout).groups()
    side = re.search(r"instrShape = \[(\d+)", layout).group(1)
    return (layout.split("<")[0], re.search(r"version\w* = \d", layout).group(), warps[0], side)
