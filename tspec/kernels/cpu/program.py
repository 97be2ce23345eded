"""Runs a bound program: one native call a pass, in which all threads go through the launches together.

A launch is LAUNCH_WORDS int64: its code, then its operands (addresses and sizes). Which word is what is written
once, in OPERANDS; `bind` writes a launch by these names and the kernel calls below read them in the same order.
"""

from collections.abc import Mapping

import numpy as np

from tspec.kernels.cpu import accept, attention, kv_cache, linear, norm, rows
from tspec.kernels.cpu.simd import load_f32, load_i64, store_i64
from tspec.kernels.cpu.sync import (
    FIRST_COUNTER,
    NUM_LAUNCHES,
    PROGRAM,
    STEP,
    barrier,
    load_acquire,
    store_release,
    wait_for_step,
)
from tspec.kernels.jit import native

LAUNCH_WORDS = 32

(
    INDEX_ROWS, EMBED, RMS_NORM, ADD_RMS_NORM, LINEAR, LINEAR_SILU_MUL, ROPE_KV_WRITE, ATTENTION, LAST_ROW,
    HEAD_ARGMAX, ARGMAX, ADD, ACCEPT_MATCH, KV_COMMIT,
) = range(14)  # fmt: skip

FRAME = ("frame", "row_seq", "row_node", "row_place", "seq_place", "row_start")
"""What `index_rows` writes and the other launches read."""

_LINEAR = ("frame", "space", "storage", "x", "k", "weight", "bias", "out", "n", "scratch", "scratch_stride")

OPERANDS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "index_rows": (INDEX_ROWS, (*FRAME, "num_nodes", "num_sequences", "max_nodes")),
    "embed": (
        EMBED, ("frame", "row_place", "storage", "is_packed", "out", "tokens", "weight", "cols"),
    ),
    "rms_norm": (RMS_NORM, ("frame", "space", "out", "x", "weight", "cols", "eps")),
    "add_rms_norm": (ADD_RMS_NORM, ("frame", "space", "y", "h", "x", "residual", "weight", "cols", "eps")),
    "linear": (LINEAR, _LINEAR),
    "linear_silu_mul": (LINEAR_SILU_MUL, _LINEAR),
    "rope_kv_write": (
        ROPE_KV_WRITE,
        (
            "frame", "row_seq", "row_node", "storage", "out", "k_cache", "v_cache", "qkv", "cos", "sin", "q_norm",
            "k_norm", "depth", "block_table", "prefix_len", "max_nodes", "head_dim", "num_heads", "num_kv_heads",
            "eps", "max_blocks",
        ),
    ),
    "attention": (
        ATTENTION,
        (
            "frame", "row_seq", "row_start", "storage", "out", "q", "k_cache", "v_cache", "ancestors", "prefix_len",
            "num_nodes", "block_table", "max_nodes", "max_blocks", "head_dim", "num_heads", "num_kv_heads", "window",
            "scale", "partials", "scratch", "scratch_stride",
        ),
    ),
    "last_row": (LAST_ROW, ("frame", "row_start", "num_nodes", "out", "x", "cols")),
    "head_argmax": (HEAD_ARGMAX, (*_LINEAR, "place", "best")),
    "argmax": (ARGMAX, ("frame", "space", "place", "out", "logits", "vocab")),
    "add": (ADD, ("frame", "space", "out", "a", "b", "cols")),
    "accept_match": (
        ACCEPT_MATCH,
        ("frame", "out_tokens", "num_out", "path", "node_tokens", "tokens", "ancestors", "num_nodes", "max_nodes"),
    ),
    "kv_commit": (
        KV_COMMIT,
        (
            "frame", "num_layers", "storage", "k_caches", "v_caches", "path", "num_out", "block_table", "prefix_len",
            "max_nodes", "head_dim", "num_kv_heads", "max_blocks",
        ),
    ),
}  # fmt: skip
"""Code and operands of each kind of launch. `space` is 0 for a row a node, 1 for a row a sequence."""

FLOATS = ("eps", "scale")
"""Operands that are float32 numbers, kept as raw bits in the low half of their word."""


def bind(kind: str, operands: Mapping[str, int | float]) -> np.ndarray:
    """Return one launch, int64 [LAUNCH_WORDS]. Every operand of the kind has to be there; others are ignored."""
    code, names = OPERANDS[kind]
    words = np.zeros(LAUNCH_WORDS, dtype=np.int64)
    words[0] = code
    for place, name in enumerate(names, start=1):
        value = operands[name]
        words[place] = np.float32(value).view(np.int32) if name in FLOATS else int(value)
    return words


@native()
def word(launch, place):
    """Operand `place` (from 1) of a launch."""
    return load_i64(launch + place * 8)


@native()
def num_rows(frame, space):
    """Rows that a launch works on: live nodes, or live sequences."""
    return load_i64(frame + space * 8)


@native()
def _linears(control, counter, thread, num_threads, launch):
    """The three kinds of launch that stream weights."""
    rows_here = num_rows(word(launch, 1), word(launch, 2))
    storage, x, k, weight, bias = (
        word(launch, 3),
        word(launch, 4),
        word(launch, 5),
        word(launch, 6),
        word(launch, 7),
    )
    out, n, scratch = word(launch, 8), word(launch, 9), word(launch, 10) + thread * word(launch, 11)
    if rows_here == 0:
        return
    code = word(launch, 0)
    if code == LINEAR:
        linear.linear(counter, num_threads, storage, rows_here, x, k, weight, bias, out, n, scratch)
    elif code == LINEAR_SILU_MUL:
        linear.linear_silu_mul(counter, num_threads, storage, rows_here, x, k, weight, bias, out, n, scratch)
    else:
        place, best = word(launch, 12), word(launch, 13)
        linear.head_argmax(
            control,
            counter,
            thread,
            num_threads,
            storage,
            rows_here,
            x,
            k,
            weight,
            bias,
            out,
            place,
            n,
            scratch,
            best,
        )


@native()
def _attention(control, counter, thread, num_threads, launch):
    """Rotation with KV write, attention, and commit."""
    a, code, frame = launch, word(launch, 0), word(launch, 1)
    if code == ROPE_KV_WRITE:
        kv_cache.rope_kv_write(
            counter, num_rows(frame, 0), word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7),
            word(a, 8), word(a, 9), word(a, 10), word(a, 11), word(a, 12), word(a, 13), word(a, 14), word(a, 15),
            word(a, 16), word(a, 17), word(a, 18), word(a, 19), load_f32(a + 20 * 8), word(a, 21),
        )  # fmt: skip
    elif code == ATTENTION:
        attention.tree_attention(
            control, counter, counter + 8, num_threads, num_rows(frame, 0), word(a, 2), word(a, 3), word(a, 4),
            word(a, 5), word(a, 6), word(a, 7), word(a, 8), word(a, 9), word(a, 10), word(a, 11), word(a, 12),
            num_rows(frame, 1), word(a, 13), word(a, 14), word(a, 15), word(a, 16), word(a, 17), word(a, 18),
            load_f32(a + 19 * 8), word(a, 20), word(a, 21) + thread * word(a, 22),
        )  # fmt: skip
    else:
        kv_cache.kv_commit(
            counter, num_rows(frame, 1), word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7),
            word(a, 8), word(a, 9), word(a, 10), word(a, 11), word(a, 12), word(a, 13),
        )  # fmt: skip


@native()
def _row_kernels(counter, launch):
    """Launches that claim whole rows or sequences."""
    a, code, frame = launch, word(launch, 0), word(launch, 1)
    if code == EMBED:
        rows.embed(
            counter, num_rows(frame, 0), word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7),
            word(a, 8),
        )  # fmt: skip
    elif code == RMS_NORM:
        norm.rms_norm(
            counter,
            num_rows(frame, word(a, 2)),
            word(a, 3),
            word(a, 4),
            word(a, 5),
            word(a, 6),
            load_f32(a + 7 * 8),
        )
    elif code == ADD_RMS_NORM:
        norm.add_rms_norm(
            counter, num_rows(frame, word(a, 2)), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7),
            word(a, 8), load_f32(a + 9 * 8),
        )  # fmt: skip
    elif code == LAST_ROW:
        rows.last_row(counter, num_rows(frame, 1), word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6))
    elif code == ARGMAX:
        rows.argmax(counter, num_rows(frame, word(a, 2)), word(a, 3), word(a, 4), word(a, 5), word(a, 6))
    elif code == ADD:
        rows.add(counter, num_rows(frame, word(a, 2)), word(a, 3), word(a, 4), word(a, 5), word(a, 6))
    else:
        accept.accept_match(
            counter, num_rows(frame, 1), word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7),
            word(a, 8), word(a, 9),
        )  # fmt: skip


@native()
def _start_pass(control, num_launches, launch):
    """Reset the work counters, and number the live rows. Thread 0 alone."""
    for counter in range(2 * num_launches):
        store_i64(control + FIRST_COUNTER + counter * 8, 0)
    rows.index_rows(
        word(launch, 1), word(launch, 7), word(launch, 8), word(launch, 9), word(launch, 2), word(launch, 3),
        word(launch, 4), word(launch, 5), word(launch, 6),
    )  # fmt: skip


@native()
def run_pass(control, thread, num_threads):
    """One thread's part of a pass: every launch of the program in order, a barrier after each."""
    program, num_launches = load_i64(control + PROGRAM), load_i64(control + NUM_LAUNCHES)
    if thread == 0:
        _start_pass(control, num_launches, program)
    barrier(control, num_threads)
    for number in range(1, num_launches):
        launch = program + number * LAUNCH_WORDS * 8
        counter = control + FIRST_COUNTER + number * 16
        code = load_i64(launch)
        if code in (LINEAR, LINEAR_SILU_MUL, HEAD_ARGMAX):
            _linears(control, counter, thread, num_threads, launch)
        elif code in (ROPE_KV_WRITE, ATTENTION, KV_COMMIT):
            _attention(control, counter, thread, num_threads, launch)
        else:
            _row_kernels(counter, launch)
        barrier(control, num_threads)


@native()
def announce(control, program, num_launches):
    """Let the workers begin a pass; thread 0 then has to take part through `run_pass`."""
    store_i64(control + PROGRAM, program)
    store_i64(control + NUM_LAUNCHES, num_launches)
    store_release(control + STEP, load_acquire(control + STEP) + 1)


@native()
def work(control, thread, num_threads, seen, yields):
    """A worker's loop: take part in each step until none came for a while (returns the last step seen).

    A negative STEP ends it: the pool is closing.
    """
    while True:
        now = wait_for_step(control, seen, yields)
        if now == seen or now < 0:
            return now
        run_pass(control, thread, num_threads)
        seen = now
