"""Compile a kernel for a part that is not here, and read what it needs from the binary.

    case      AotCase: kernel, types of its arguments, constants, options
    card      a GPUTarget and what a program may use of it
    reading   registers, spilled bytes, shared memory, and counts of instructions

Needs no GPU and no driver: the CUDA toolchain that the wheel of triton carries reads the cubin, and for AMD the text
of the assembly says it all. Runs nothing.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tspec.kernels.cuda.tuned import ARCHITECTURES

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
"""What every kernel is compiled for, by architecture."""

ALIGNMENT = 16
"""What the launcher tells the compiler of an argument: pointers, and numbers that are multiples, are divisible."""


@dataclass(frozen=True, slots=True)
class AotCase:
    """One variant of one kernel for one architecture.

    arguments   in order; "*bf16" a pointer, "i32" or "fp32" a number, an int a number of known value,
                None an operand that is left out
    has_dot     whether its products have to run on tensor cores
    """

    name: str
    arch: str
    kernel: Any
    arguments: Mapping[str, str | int | None]
    constexprs: dict[str, Any]
    options: dict[str, Any]
    has_dot: bool
    is_representative: bool = False

    def __str__(self) -> str:
        return f"{self.arch}-{self.name}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the binary of one case needs. `tensor_core` names the instruction of its products, or is empty."""

    registers: int
    spilled_bytes: int
    shared_bytes: int
    tensor_core: str
    num_tensor_core: int
    num_async_copies: int
    assembly: str

    def describe(self) -> str:
        """One line for a message."""
        return (
            f"{self.registers} registers, {self.spilled_bytes} B spilled, {self.shared_bytes} B shared, "
            f"{self.num_tensor_core} x {self.tensor_core or 'no tensor core'}"
        )


def shared_limit(arch: str) -> int:
    """Bytes of shared memory that one program may use on `arch`."""
    return ARCHITECTURES[arch].shared_bytes


def compile_case(case: AotCase) -> Any:
    """Compile `case` as the launcher would for its arguments, and return triton's compiled kernel."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = dict(case.constexprs)
    attrs: dict[tuple[int], list] = {}
    for place, (name, kind) in enumerate(case.arguments.items()):
        if kind is None:
            signature[name], constants[name] = "constexpr", None
            continue
        signature[name] = "i32" if isinstance(kind, int) else kind
        is_aligned = kind % ALIGNMENT == 0 if isinstance(kind, int) else kind.startswith("*")
        if is_aligned:
            attrs[(place,)] = [["tt.divisibility", ALIGNMENT]]
    signature |= {name: "constexpr" for name in case.constexprs}
    names = case.kernel.arg_names
    assert list(signature) == names, f"{case}: {list(signature)} are not {names}"
    source = ASTSource(case.kernel, signature, constants, attrs)
    return triton.compile(source, target=TARGETS[case.arch], options=case.options)


def read_case(case: AotCase) -> Reading:
    """Compile `case` and read its needs."""
    compiled = compile_case(case)
    if "cubin" in compiled.asm:
        return _read_cubin(compiled.asm["cubin"], compiled.metadata.shared)
    return _read_amdgcn(compiled.asm["amdgcn"], compiled.metadata.shared)


def _read_cubin(cubin: bytes, shared_bytes: int) -> Reading:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, sass = (
            subprocess.run([tool, flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("--dump-resource-usage", "-sass")
        )
    needs = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    local = len(re.findall(r"\b(?:LDL|STL)\b", sass))
    spilled = max(needs["STACK"], needs["LOCAL"], 4 * local)
    products = re.findall(r"\b((?:HGMMA|HMMA|UTC\w*MMA)[\w.]*)", sass)
    copies = len(re.findall(r"\b(?:LDGSTS|UTMALDG)\b", sass))
    return Reading(
        needs["REG"], spilled, shared_bytes, products[0] if products else "", len(products), copies, sass
    )


def _read_amdgcn(text: str, shared_bytes: int) -> Reading:
    counts = {
        key: int(value)
        for key, value in re.findall(
            r"\.(vgpr_count|vgpr_spill_count|private_segment_fixed_size):\s*(\d+)", text
        )
    }
    products = re.findall(r"\b(v_mfma_\w+)", text)
    spilled = max(4 * counts["vgpr_spill_count"], counts["private_segment_fixed_size"])
    return Reading(
        counts["vgpr_count"], spilled, shared_bytes, products[0] if products else "", len(products), 0, text
    )
