"""Attention as compiled: one order of summation whatever the row tile, and partial sums released and acquired.

Registers, spills and shared memory are read in test_compile.py. No GPU.

Run: pytest tests/aot/test_attention.py
     pytest -m slow tests/aot/test_attention.py
"""

import pytest
from support.layouts import slots_in_threads

from tspec.core.dtypes import DType
from tspec.kernels.cuda.attention_cases import HEAD_DIMS, attention_case
from tspec.kernels.cuda.resources import TARGETS, compile_case
from tspec.kernels.cuda.tuned import default_attention_tuned

FEW, MANY = 1, 64
"""Query rows a KV head that run in the narrowest row tile, and in the widest that is a default."""


def compiled(arch: str, head_dim: int, rows: int):
    tuned = default_attention_tuned(head_dim, rows, DType.BFLOAT16, arch)
    return compile_case(attention_case(arch, "bf16", head_dim, 4, tuned, norms=True))


@pytest.mark.parametrize(
    ("arch", "head_dim"),
    [
        pytest.param(arch, head_dim, marks=() if (arch, head_dim) == ("sm_90", 64) else pytest.mark.slow)
        for arch in TARGETS
        for head_dim in HEAD_DIMS
    ],
)
def test_slots_are_summed_in_one_order_with_and_without_masks_and_in_row_tiles_of_any_width(arch, head_dim):
    """The sum of weights is the one sum whose order the compiler chooses: the layout of slots is that order."""
    few, many = (slots_in_threads(compiled(arch, head_dim, rows).asm["ttgir"]) for rows in (FEW, MANY))
    assert len(few) == 1
    assert few == many


def test_partial_sums_are_released_before_the_counter_and_acquired_after_it():
    """Stores, a barrier, the acquire-release count, a barrier, loads past L1; the counter is reset between."""
    ptx = compiled("sm_90", 64, FEW).asm["ptx"]
    count = ptx.index("atom.global.gpu.acq_rel.add")
    before, after = ptx[:count], ptx[count:]
    stored = before.rindex("st.global")
    assert "bar.sync" in before[stored:]
    first_load = after.index("ld.global.cg")
    assert "bar.sync" in after[:first_load]
    assert "ld.global.cg" not in before


def test_nodes_are_written_and_met_at_a_barrier_before_any_tile_is_read():
    """Also in the pipelined loop: no copy of a tile is started before the wait for the launch before."""
    ptx = compiled("sm_90", 64, FEW).asm["ptx"]
    wait = ptx.index("griddepcontrol.wait")
    assert ptx.index("griddepcontrol.launch_dependents") < wait
    assert "ld.global" not in ptx[:wait] and "cp.async" not in ptx[:wait]
    written = ptx.index("st.global", ptx.index("rsqrt"))
    assert "bar.sync" in ptx[written : ptx.index("cp.async.cg")]
