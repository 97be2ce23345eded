"""How the threads of a pass meet: work claimed by an atomic counter, a barrier that spins and then yields.

A control block is an int64 array; each word that threads write lies in a cache line of its own.
"""

import platform
from typing import Any

from llvmlite import ir
from numba import types

from tspec.kernels.cpu.simd import I8, I32, I64, _intrinsic, call, pointer
from tspec.kernels.jit import native

LINE = 64
"""Bytes of a cache line (of two on some CPUs; the words are few)."""

ARRIVED, PHASE, STEP, PROGRAM, NUM_LAUNCHES, FIRST_COUNTER = (LINE * 2 * word for word in range(6))
"""Byte offsets in the control block. `FIRST_COUNTER` starts the work counters of all launches."""

SPINS_BEFORE_YIELD = 2000

YIELDS_BEFORE_SLEEP = 20_000
"""An idle worker gives up the CPU this often, some milliseconds in all, before it sleeps."""

NAP_US, NAPS, SLEEP_US = 100, 5_000, 2_000
"""Sleeps of an idle worker: short ones for a second, then longer ones. A pass after them starts that much later."""


def _pause(builder: Any) -> None:
    if platform.machine() in ("x86_64", "AMD64"):
        call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])


def _prefetch(builder: Any, address: Any) -> None:
    """To the second-level cache, to be read."""
    call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer(builder, address, I8), I32(0), I32(2), I32(1)])


atomic_add = _intrinsic(
    types.int64,
    (types.int64, types.int64),
    lambda b, a, value: b.atomic_rmw("add", pointer(b, a, I64), value, "seq_cst"),
)
load_acquire = _intrinsic(
    types.int64, (types.int64,), lambda b, a: b.load_atomic(pointer(b, a, I64), "acquire", 8)
)
store_release = _intrinsic(
    types.void,
    (types.int64, types.int64),
    lambda b, a, value: b.store_atomic(value, pointer(b, a, I64), "release", 8),
)
prefetch = _intrinsic(types.void, (types.int64,), lambda b, a: _prefetch(b, a))
pause = _intrinsic(types.void, (), lambda b: _pause(b))
sched_yield = types.ExternalFunction("sched_yield", types.int32())
usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@native()
def barrier(control, num_threads):
    """Wait until all threads have come here. Writes before it are seen by all after it."""
    barrier_ahead(control, num_threads, 0, 0)


@native()
def barrier_ahead(control, num_threads, ahead, size_bytes):
    """`barrier`; while it waits, a thread brings `size_bytes` from `ahead` on into its cache, which it needs next."""
    if num_threads == 1:
        return
    phase = load_acquire(control + PHASE)
    if atomic_add(control + ARRIVED, 1) == num_threads - 1:
        store_release(control + ARRIVED, 0)
        store_release(control + PHASE, phase + 1)
        return
    spins, fetched = 0, 0
    while load_acquire(control + PHASE) == phase:
        spins += 1
        if fetched < size_bytes:
            prefetch(ahead + fetched)
            fetched += LINE
        elif spins < SPINS_BEFORE_YIELD:
            pause()
        else:
            sched_yield()


@native()
def wait_for_step(control, seen):
    """Wait until STEP differs from `seen` and return it: spin, then yield the CPU, then sleep ever longer."""
    waits = 0
    step = load_acquire(control + STEP)
    while step == seen:
        waits += 1
        if waits < SPINS_BEFORE_YIELD:
            pause()
        elif waits < SPINS_BEFORE_YIELD + YIELDS_BEFORE_SLEEP:
            sched_yield()
        elif waits < SPINS_BEFORE_YIELD + YIELDS_BEFORE_SLEEP + NAPS:
            usleep(NAP_US)
        else:
            usleep(SLEEP_US)
        step = load_acquire(control + STEP)
    return step
