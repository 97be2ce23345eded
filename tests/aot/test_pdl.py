"""Kernels that may be launched before the one before them ends: every program of each waits first. No GPU.

One variant of each kernel is read here; the test of all variants in test_compile.py holds the others to the same.

Run: pytest tests/aot/test_pdl.py
     pytest -m slow tests/aot/test_pdl.py
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.early_launch import LET_NEXT_START, WAIT, hold_early_launch
from support.sources import name_of, python_files

from tspec.kernels.cuda.cases import aot_cases
from tspec.kernels.cuda.linear_cases import PDL_ARCHITECTURES
from tspec.kernels.cuda.resources import TARGETS, read_case
from tspec.kernels.cuda.tuned import can_launch_early


def nodes(*folders: str) -> Iterator[tuple[Path, ast.AST]]:
    for file in python_files(*folders):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            yield file, node


KERNELS = {
    node.name
    for _, node in nodes("tspec/kernels")
    if isinstance(node, ast.FunctionDef)
    and any("triton.jit" in ast.unparse(each) for each in node.decorator_list)
}
"""Names of all functions that Triton compiles."""


def launched_kernels() -> set[str]:
    """Those that a host launches: what is called as `name[grid](…)`. The others are called from them."""
    return {
        name
        for _, node in nodes("tspec", "autotune")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
        if (name := ast.unparse(node.func.value).split(".")[-1]) in KERNELS
    }


def one_of_each_kernel(arch: str) -> dict:
    found: dict = {}
    for case in aot_cases():
        if case.arch == arch:
            found.setdefault(case.kernel.__name__, case)
    return found


SAMPLES = [
    pytest.param(case, id=str(case), marks=() if arch == "sm_90" else pytest.mark.slow)
    for arch in TARGETS
    for case in one_of_each_kernel(arch).values()
]


def test_launches_start_early_exactly_where_parts_can_do_that():
    assert tuple(arch for arch in TARGETS if can_launch_early(arch)) == PDL_ARCHITECTURES


@pytest.mark.parametrize("arch", TARGETS)
def test_every_kernel_that_is_launched_is_among_those_compiled_ahead(arch):
    assert launched_kernels() == one_of_each_kernel(arch).keys()


def test_a_kernel_is_launched_in_one_way_alone():
    """Launches that the search for `name[grid](…)` does not see would escape the test above."""
    hidden = [
        f"{name_of(file)}: {ast.unparse(node)}"
        for file, node in nodes("tspec", "autotune")
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] in KERNELS
    ]
    assert hidden == []


@pytest.mark.parametrize("case", SAMPLES)
def test_every_program_waits_before_it_touches_what_other_launches_write(case):
    hold_early_launch(case, read_case(case).assembly)


EARLY = f"""
    /*0000*/ LDC R1, c[0x0][0x28] ;
    /*0010*/ {LET_NEXT_START} ;
    /*0018*/ @!P0 BRA 0x20 ;
    /*001c*/ UTCATOMSWS.FIND_AND_SET.ALIGN UP1, UR4, UR6 ;
    /*0020*/ CCTL.E.PF2 [R2] ;
    /*0030*/ {WAIT} ;
    /*0040*/ LDG.E R4, [R2] ;
    /*0050*/ STG.E [R2], R4 ;
    /*0060*/ EXIT ;
    /*0070*/ LDG.E R4, [R2] ;
    /*0078*/ RET.REL.NODEC R2 0x0 ;
    /*0080*/ BPT.TRAP 0x1 ;
    /*0088*/ IMAD.MOV.U32 R3, RZ, RZ, 0x0 ;
    /*0090*/ RET.REL.NODEC R2 0x0 ;"""
SPOILED = {
    "no wait": (WAIT, "NOP"),
    "a wait of some programs": (WAIT, f"@P0 {WAIT}"),
    "a read before": ("CCTL.E.PF2", "LDG.E"),
    "a copy before": ("CCTL.E.PF2", "LDGSTS.E"),
    "a write before": ("CCTL.E.PF2", "@!P1 STG.E"),
    "an atomic before": ("CCTL.E.PF2", "ATOMG.E"),
    "a program that leaves before": ("CCTL.E.PF2", "@P0 EXIT"),
    "a branch past it": ("CCTL.E.PF2 [R2]", "@P0 BRA.U UP0, 0x40"),
    "a function before": ("CCTL.E.PF2 [R2]", "CALL.REL.NOINC 0x70"),
    "the next launch is never let go": (LET_NEXT_START, "NOP"),
}


def test_code_that_waits_first_is_accepted():
    hold_early_launch(one_of_each_kernel("sm_90")["_embed"], EARLY)


def test_a_trap_before_the_wait_is_accepted():
    """The program ends with an error there, and all others with it."""
    trapped = EARLY.replace("CCTL.E.PF2 [R2]", "@P0 CALL.REL.NOINC 0x80")
    hold_early_launch(one_of_each_kernel("sm_90")["_embed"], trapped)


@pytest.mark.parametrize("fault", SPOILED)
def test_code_that_does_not_is_refused(fault):
    with pytest.raises(AssertionError):
        hold_early_launch(one_of_each_kernel("sm_90")["_embed"], EARLY.replace(*SPOILED[fault]))


def test_early_launch_on_a_part_without_it_is_refused():
    with pytest.raises(AssertionError):
        hold_early_launch(one_of_each_kernel("sm_80")["_embed"], EARLY)
