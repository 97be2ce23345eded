"""Runs a bound program: one native call a pass, in which all threads go through the launches together.

A launch is LAUNCH_WORDS int64: its code, then its operands (addresses and sizes). Which word is what is written
once, in OPERANDS; `bind` writes a launch by these names and the kernel calls below read them in the same order.
"""

from collections.abc import Mapping

import numpy as np

from tspec.kernels.cpu import (
    accept,
    accept_ratio,
    attention,
    edits,
    kept,
    kv_cache,
    linear,
    logprobs,
    rows,
    sampling,
)
from tspec.kernels.cpu.requests import Requests
from tspec.kernels.cpu.simd import load_f32, load_i64, store_i64
from tspec.kernels.cpu.sync import (
    FIRST_COUNTER,
    NUM_LAUNCHES,
    PROGRAM,
    STEP,
    barrier,
    barrier_ahead,
    load_acquire,
    store_release,
    wait_for_step,
)
from tspec.kernels.jit import native

LAUNCH_WORDS = 32

AHEAD = 30
"""The last two words of a launch: where the weights of the next product start, and the bytes of its first claim."""

(
    INDEX_ROWS, EMBED, LINEAR, LINEAR_SILU_MUL, HEAD_SAMPLE, ROPE_ATTENTION, LAST_ROW, EDIT_LOGITS, FIND_KEPT,
    SAMPLE, TOKEN_LOGPROBS, ACCEPT_MATCH, ACCEPT_RATIO, KV_COMMIT,
) = range(14)  # fmt: skip

FRAME = ("frame", "row_seq", "row_node", "row_place", "seq_place", "row_start")
"""What `index_rows` writes and the other launches read."""

_ROWS = (
    "place",
    "row_seq",
    "row_node",
    "temperature",
    "seed",
    "prefix_len",
    "depth",
    "num_nodes",
    "max_nodes",
)
"""Where rows are written, then what `_requests` reads, one after the other."""

_PRODUCT = (
    "frame", "space", "storage", "x", "k", "norm", "eps", "weight", "bias", "out", "n", "scratch", "scratch_stride",
    "residual", "best", *_ROWS,
)  # fmt: skip

OPERANDS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "index_rows": (INDEX_ROWS, (*FRAME, "num_nodes", "num_sequences", "max_nodes")),
    "embed": (EMBED, ("frame", "row_place", "storage", "is_packed", "out", "tokens", "weight", "cols")),
    "linear": (LINEAR, _PRODUCT),
    "linear_add": (LINEAR, _PRODUCT),
    "head_logits": (LINEAR, _PRODUCT),
    "norm_head_logits": (LINEAR, _PRODUCT),
    "linear_silu_mul": (LINEAR_SILU_MUL, _PRODUCT),
    "head_sample": (HEAD_SAMPLE, _PRODUCT),
    "norm_linear": (LINEAR, _PRODUCT),
    "norm_linear_silu_mul": (LINEAR_SILU_MUL, _PRODUCT),
    "norm_head_sample": (HEAD_SAMPLE, _PRODUCT),
    "rope_attention": (
        ROPE_ATTENTION,
        (
            "frame", "row_seq", "row_node", "row_start", "storage", "out", "qkv", "cos", "sin", "q_norm", "k_norm",
            "eps", "k_cache", "v_cache", "ancestors", "depth", "block_table", "prefix_len", "num_nodes", "max_nodes",
            "max_blocks", "head_dim", "num_heads", "num_kv_heads", "window", "scale", "partials", "scratch",
            "scratch_stride",
        ),
    ),
    "last_row": (LAST_ROW, ("frame", "row_start", "num_nodes", "out", "x", "cols")),
    "edit_logits": (
        EDIT_LOGITS,
        (
            "frame", "space", *_ROWS, "out", "logits", "vocab", "edits", "penalties", "counts", "bias", "mask",
            "tokens", "ancestors",
        ),
    ),
    "find_kept": (
        FIND_KEPT,
        (
            "frame", "space", *_ROWS, "threshold", "first_tie", "log_sum", "logits", "vocab", "top_k", "top_p",
            "min_p", "scratch", "scratch_stride",
        ),
    ),
    "sample": (
        SAMPLE,
        (
            "frame", "space", *_ROWS, "out", "logits", "vocab", "threshold", "first_tie", "scratch",
            "scratch_stride",
        ),
    ),
    "token_logprobs": (
        TOKEN_LOGPROBS,
        (
            "frame", "space", *_ROWS, "logprobs", "top_tokens", "top_logprobs", "most", "logits", "vocab", "chosen",
            "num_logprobs", "num_out", "path", "row_start", "scratch", "scratch_stride",
        ),
    ),
    "accept_match": (
        ACCEPT_MATCH,
        ("frame", "out_tokens", "num_out", "path", "node_tokens", "tokens", "ancestors", "num_nodes", "max_nodes"),
    ),
    "accept_ratio": (
        ACCEPT_RATIO,
        (
            "frame", "out_tokens", "num_out", "path", "scratch", "scratch_stride", "node_tokens", "tokens",
            "ancestors", "depth", "num_nodes", "prefix_len", "max_nodes", "logits", "vocab", "row_start",
            "temperature", "seed", "threshold", "first_tie", "log_sum", "is_sampled", "draft_logprobs",
            "draft_vocab", "draft_index",
        ),
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

COUNTERS_A_LAUNCH = 4
"""Work counters of a launch, int64 each: one a phase."""

FLOATS = ("eps", "scale")
"""Operands that are float32 numbers, kept as raw bits in the low half of their word."""


def bind(kind: str, operands: Mapping[str, int | float]) -> np.ndarray:
    """Return one launch, int64 [LAUNCH_WORDS]. Operands that `operands` lacks are 0: absent; others are ignored."""
    code, names = OPERANDS[kind]
    assert len(names) < AHEAD, kind
    words = np.zeros(LAUNCH_WORDS, dtype=np.int64)
    words[0] = code
    for place, name in enumerate(names, start=1):
        value = operands.get(name, 0)
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
def _requests(a, place):
    """The operands of _ROWS behind the first, from word `place` on."""
    return Requests(
        word(a, 2), word(a, place), word(a, place + 1), word(a, place + 2), word(a, place + 3), word(a, place + 4),
        word(a, place + 5), word(a, place + 6), word(a, place + 7),
    )  # fmt: skip


@native()
def _product(control, counter, thread, num_threads, a):
    """The three kinds of launch that stream weights."""
    rows_here = num_rows(word(a, 1), word(a, 2))
    storage, x, k, norm, eps, weight = (
        word(a, 3),
        word(a, 4),
        word(a, 5),
        word(a, 6),
        load_f32(a + 7 * 8),
        word(a, 8),
    )
    bias, out, n, scratch = word(a, 9), word(a, 10), word(a, 11), word(a, 12) + thread * word(a, 13)
    if rows_here == 0:
        return
    code = word(a, 0)
    if code == LINEAR:
        linear.linear(
            counter,
            num_threads,
            storage,
            rows_here,
            x,
            k,
            norm,
            eps,
            weight,
            bias,
            word(a, 14),
            out,
            n,
            scratch,
        )
    elif code == LINEAR_SILU_MUL:
        linear.linear_silu_mul(
            counter, num_threads, storage, rows_here, x, k, norm, eps, weight, bias, out, n, scratch
        )
    else:
        linear.head_sample(
            control, counter, thread, num_threads, storage, rows_here, x, k, norm, eps, weight, bias, out, word(a, 16),
            n, scratch, word(a, 15), _requests(a, 17),
        )  # fmt: skip


@native()
def _rope_attention(control, counter, thread, num_threads, a):
    """Rotate and write the new keys and values, wait for all of them, then attend."""
    frame, row_seq, row_start, storage, qkv = word(a, 1), word(a, 2), word(a, 4), word(a, 5), word(a, 7)
    k_cache, v_cache, depth, block_table, prefix_len = (
        word(a, 13),
        word(a, 14),
        word(a, 16),
        word(a, 17),
        word(a, 18),
    )
    max_nodes, max_blocks, head_dim, num_heads, num_kv_heads = (
        word(a, 20), word(a, 21), word(a, 22), word(a, 23), word(a, 24),
    )  # fmt: skip
    rows_here = num_rows(frame, 0)
    kv_cache.rope_kv_write(
        counter, rows_here, row_seq, word(a, 3), storage, k_cache, v_cache, qkv, word(a, 8), word(a, 9), word(a, 10),
        word(a, 11), depth, block_table, prefix_len, max_nodes, head_dim, num_heads, num_kv_heads,
        load_f32(a + 12 * 8), max_blocks,
    )  # fmt: skip
    barrier(control, num_threads)
    q_stride = (num_heads + 2 * num_kv_heads) * head_dim * 4
    caches = attention.Caches(storage, k_cache, v_cache, num_kv_heads, head_dim)
    attention.tree_attention(
        control, counter + 8, counter + 16, num_threads, rows_here, row_seq, row_start, word(a, 6), qkv, q_stride,
        caches, word(a, 15), prefix_len, word(a, 19), block_table, num_rows(frame, 1), max_nodes, max_blocks,
        num_heads, word(a, 25), load_f32(a + 26 * 8), word(a, 27), word(a, 28) + thread * word(a, 29),
    )  # fmt: skip


@native()
def _row_kernels(counter, a):
    """Launches that claim whole rows or sequences."""
    code, frame = word(a, 0), word(a, 1)
    if code == EMBED:
        rows.embed(
            counter, num_rows(frame, 0), word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7),
            word(a, 8),
        )  # fmt: skip
    elif code == LAST_ROW:
        rows.last_row(counter, num_rows(frame, 1), word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6))
    elif code == ACCEPT_MATCH:
        accept.accept_match(
            counter, num_rows(frame, 1), word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7),
            word(a, 8), word(a, 9),
        )  # fmt: skip
    else:
        kv_cache.kv_commit(
            counter, num_rows(frame, 1), word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7),
            word(a, 8), word(a, 9), word(a, 10), word(a, 11), word(a, 12), word(a, 13),
        )  # fmt: skip


@native()
def _logits_kernels(counter, thread, a):
    """Launches over rows of logits, which begin with the operands of _ROWS."""
    code, rows_here = word(a, 0), num_rows(word(a, 1), word(a, 2))
    place, requests = word(a, 3), _requests(a, 4)
    if code == EDIT_LOGITS:
        edits.edit_logits(
            counter, rows_here, requests, place, word(a, 12), word(a, 13), word(a, 14), word(a, 15), word(a, 16),
            word(a, 17), word(a, 18), word(a, 19), word(a, 20), word(a, 21),
        )  # fmt: skip
    elif code == FIND_KEPT:
        kept.find_kept(
            counter, rows_here, requests, place, word(a, 12), word(a, 13), word(a, 14), word(a, 15), word(a, 16),
            word(a, 17), word(a, 18), word(a, 19), word(a, 20) + thread * word(a, 21),
        )  # fmt: skip
    elif code == SAMPLE:
        sampling.sample(
            counter, rows_here, requests, place, word(a, 12), word(a, 13), word(a, 14), word(a, 15), word(a, 16),
            word(a, 17) + thread * word(a, 18),
        )  # fmt: skip
    else:
        found = logprobs.Found(word(a, 12), word(a, 13), word(a, 14), word(a, 15))
        wanted = logprobs.Wanted(word(a, 18), word(a, 19), word(a, 20), word(a, 21))
        logprobs.token_logprobs(
            counter, rows_here, requests, place, word(a, 22), word(a, 16), word(a, 17), wanted, found,
            word(a, 23) + thread * word(a, 24),
        )  # fmt: skip


@native()
def _accept_ratio(counter, thread, a):
    """The launch that may have to draw from a residual."""
    trees = accept_ratio.Trees(
        word(a, 7), word(a, 8), word(a, 9), word(a, 10), word(a, 11), word(a, 12), word(a, 13)
    )
    laws = accept_ratio.Laws(
        word(a, 14), word(a, 15), word(a, 16), word(a, 17), word(a, 18), word(a, 19), word(a, 20), word(a, 21),
        word(a, 22), word(a, 23), word(a, 24), word(a, 25),
    )  # fmt: skip
    accept_ratio.accept_ratio(
        counter, num_rows(word(a, 1), 1), trees, laws, word(a, 2), word(a, 3), word(a, 4),
        word(a, 5) + thread * word(a, 6),
    )  # fmt: skip


@native()
def _start_pass(control, num_launches, launch):
    """Reset the work counters, and number the live rows. Thread 0 alone."""
    for counter in range(COUNTERS_A_LAUNCH * num_launches):
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
        counter = control + FIRST_COUNTER + number * COUNTERS_A_LAUNCH * 8
        code = load_i64(launch)
        if code == ROPE_ATTENTION:
            _rope_attention(control, counter, thread, num_threads, launch)
        elif code in (LINEAR, LINEAR_SILU_MUL, HEAD_SAMPLE):
            _product(control, counter, thread, num_threads, launch)
        elif EDIT_LOGITS <= code <= TOKEN_LOGPROBS:
            _logits_kernels(counter, thread, launch)
        elif code == ACCEPT_RATIO:
            _accept_ratio(counter, thread, launch)
        else:
            _row_kernels(counter, launch)
        ahead, size_bytes = word(launch, AHEAD), word(launch, AHEAD + 1)
        barrier_ahead(control, num_threads, ahead + thread * size_bytes, size_bytes)


@native()
def step(control, num_threads, program, num_launches):
    """Run one pass on this thread and the workers; returns when all are done."""
    store_i64(control + PROGRAM, program)
    store_i64(control + NUM_LAUNCHES, num_launches)
    store_release(control + STEP, load_acquire(control + STEP) + 1)
    run_pass(control, 0, num_threads)


@native()
def work(control, thread, num_threads):
    """A worker's life: take part in each step. A negative STEP ends it: the pool is closing."""
    seen = wait_for_step(control, 0)
    while seen >= 0:
        run_pass(control, thread, num_threads)
        seen = wait_for_step(control, seen)
