"""What the code of a kernel that may be launched early has to look like, read from its assembly.

Of two launches that follow one another the second may start once every program of the first has said so. Its wait
ends when the first has ended and what it wrote can be seen. So a chain of launches is safe where every program of
every launch waits, whatever it does then, before it touches memory that launches write: then a launch ends only after
all before it. The one thing that may come before is to bring weights, which never change, into the cache.
"""

import re

from tspec.kernels.cuda.resources import AotCase
from tspec.kernels.cuda.tuned import can_launch_early

LET_NEXT_START, WAIT = "PREEXIT", "ACQBULK"
"""How griddepcontrol.launch_dependents and griddepcontrol.wait are spelled in a binary."""

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+((?:@\S+ )?)([A-Z][\w.]*)([^;]*);")
"""Address, predicate, name and operands of an instruction."""

_GLOBAL_MEMORY = re.compile(r"(LDG|STG|LDGSTS|ATOMG?|REDG?|LD|ST|UTMA\w*|UBLK\w*)(\.|$)")
"""Shared memory, tensor memory and constants are a program's own, and a prefetch (CCTL) changes nothing."""

_LEAVING = re.compile(r"(EXIT|RET|BRX|BRXU|JMP|JMX|JMXU)(\.|$)")
"""What ends a program, or goes where the text does not say."""

_Line = tuple[str, str, str, str]


def hold_early_launch(case: AotCase, assembly: str) -> None:
    """Assert that the code of `case` waits first where it may be launched early, and has no trace of it elsewhere."""
    is_early = can_launch_early(case.arch)
    assert case.constexprs["USE_PDL"] is is_early
    assert case.options.get("launch_pdl", False) is is_early
    if not is_early:
        assert "griddepcontrol" not in assembly
        assert not re.search(rf"\b({LET_NEXT_START}|{WAIT})\b", assembly)
        return
    lines = _LINE.findall(assembly)
    waits = [line for line in lines if line[2] == WAIT]
    assert [predicate for _, predicate, _, _ in waits] == [""], "one wait, for all programs"
    before = lines[: lines.index(waits[0])]
    names = [name for _, _, name, _ in before]
    assert names.count(LET_NEXT_START) == 1
    assert [name for name in names if _LEAVING.match(name)] == [], "a program may end before it waits"
    called = [_target(line) for line in before if line[2].startswith("CALL")]
    assert all(_is_trap(lines, target) for target in called), "a function is called before the wait"
    assert [name for name in names if _GLOBAL_MEMORY.match(name)] == [], "memory is touched before the wait"
    last = int(waits[0][0], 16)
    jumps = [_target(line) for line in before if line[2].startswith("BRA")]
    assert [jump for jump in jumps if jump > last] == [], "a branch leads past the wait"


def _target(line: _Line) -> int:
    return int(line[3].split()[-1], 16)


def _is_trap(lines: list[_Line], target: int) -> bool:
    """Whether a function stops the program with an error, and does nothing else before it returns.

    Triton 3.6 calls one on sm_100 where it finds tensor memory taken that should be free.
    """
    body = [name for address, _, name, _ in lines if int(address, 16) >= target]
    end = next(place for place, name in enumerate(body) if name.startswith("RET"))
    return body[0] == "BPT.TRAP" and not any(_LEAVING.match(name) or _acts(name) for name in body[:end])


def _acts(name: str) -> bool:
    return bool(_GLOBAL_MEMORY.match(name)) or name.startswith(("CALL", "BRA"))
