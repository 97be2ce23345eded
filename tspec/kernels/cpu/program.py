"""Runs a bound program: one native call a pass, in which all threads go through the launches together.

The kernel calls below read the words of their launch in the order of launch_words.py.
"""

from tspec.kernels.cpu import (
    accept,
    accept_ratio,
    attention,
    draft,
    edits,
    features,
    kept,
    kv_cache,
    linear,
    logprobs,
    rows,
    sampling,
)
from tspec.kernels.cpu.frame import ROW_NODE, ROW_PLACE, ROW_SEQ, ROW_START, index_rows, num_rows, place_map
from tspec.kernels.cpu.launch_words import (
    ACCEPT_MATCH,
    ACCEPT_RATIO,
    AHEAD,
    CONCAT,
    EDIT_LOGITS,
    EMBED,
    EXPAND_TREE,
    FIND_KEPT,
    HEAD_SAMPLE,
    KEEP_FEATURES,
    KV_COMMIT,
    LAST_ROW,
    LAUNCH_WORDS,
    LINEAR,
    LINEAR_SILU_MUL,
    PARENT_ROWS,
    READ_FEATURES,
    RMS_NORM,
    ROPE_ATTENTION,
    SAMPLE,
    TOKEN_LOGPROBS,
    TOP_TOKENS,
)
from tspec.kernels.cpu.requests import requests_of
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

COUNTERS_A_LAUNCH = 4
"""Work counters of a launch, int64 each: one a phase."""


@native()
def word(launch, place):
    """Operand `place` (from 1) of a launch."""
    return load_i64(launch + place * 8)


@native()
def _requests(a, place):
    """What the rows of a launch are drawn with, six operands from word `place` on."""
    return requests_of(
        word(a, 1), word(a, 2), word(a, place), word(a, place + 1), word(a, place + 2), word(a, place + 3),
        word(a, place + 4), word(a, place + 5),
    )  # fmt: skip


@native()
def _product(control, counter, thread, num_threads, a):
    """The three kinds of launch that stream weights."""
    frame, space = word(a, 1), word(a, 2)
    rows_here = num_rows(frame, space)
    storage, x, k, norm, eps, weight = (
        word(a, 3),
        word(a, 4),
        word(a, 5),
        word(a, 6),
        load_f32(a + 7 * 8),
        word(a, 8),
    )
    bias, out, n, scratch = word(a, 9), word(a, 10), word(a, 11), word(a, 12) + thread * word(a, 13)
    limits = linear.Limits(word(a, 22), word(a, 23), word(a, 24), word(a, 25), word(a, 26))
    code = word(a, 0)
    if rows_here == 0 or (thread >= limits.threads and code != HEAD_SAMPLE):
        return
    if code == LINEAR:
        linear.linear(
            counter, storage, rows_here, x, k, norm, eps, weight, bias, word(a, 14), out, n, scratch, limits
        )
    elif code == LINEAR_SILU_MUL:
        linear.linear_silu_mul(
            counter, storage, rows_here, x, k, norm, eps, weight, bias, out, n, scratch, limits
        )
    else:
        linear.head_sample(
            control, counter, thread, num_threads, storage, rows_here, x, k, norm, eps, weight, bias, out,
            place_map(frame, space), n, scratch, word(a, 15), _requests(a, 16), limits,
        )  # fmt: skip


@native()
def _rope_attention(control, counter, thread, num_threads, a):
    """Rotate and write the new keys and values, wait for all of them, then attend."""
    frame, storage, qkv, k_cache, v_cache = word(a, 1), word(a, 2), word(a, 4), word(a, 10), word(a, 11)
    block_table, prefix_len, max_nodes, max_blocks = word(a, 14), word(a, 15), word(a, 17), word(a, 18)
    head_dim, num_heads, num_kv_heads, first_node = word(a, 19), word(a, 20), word(a, 21), word(a, 27)
    rows_here, row_seq = num_rows(frame, 0), load_i64(frame + ROW_SEQ)
    kv_cache.rope_kv_write(
        counter, rows_here, row_seq, load_i64(frame + ROW_NODE), storage, k_cache, v_cache, qkv, word(a, 5),
        word(a, 6), word(a, 7), word(a, 8), word(a, 13), block_table, prefix_len, max_nodes, head_dim, num_heads,
        num_kv_heads, load_f32(a + 9 * 8), max_blocks, first_node,
    )  # fmt: skip
    barrier(control, num_threads)
    q_stride = (num_heads + 2 * num_kv_heads) * head_dim * 4
    caches = attention.Caches(storage, k_cache, v_cache, num_kv_heads, head_dim)
    attention.tree_attention(
        control, counter + 8, counter + 16, num_threads, rows_here, row_seq, load_i64(frame + ROW_START), word(a, 3),
        qkv, q_stride, caches, word(a, 12), prefix_len, word(a, 16), block_table, num_rows(frame, 1), max_nodes,
        max_blocks, num_heads, word(a, 22), load_f32(a + 23 * 8), word(a, 24), word(a, 25) + thread * word(a, 26),
        first_node, word(a, 28), word(a, 29),
    )  # fmt: skip


@native()
def _row_kernels(counter, a):
    """Launches that claim rows of activations."""
    code, frame = word(a, 0), word(a, 1)
    if code == EMBED:
        rows.embed(
            counter, num_rows(frame, 0), load_i64(frame + ROW_PLACE), word(a, 2), word(a, 3), word(a, 4), word(a, 5),
            word(a, 6), word(a, 7),
        )  # fmt: skip
    elif code == LAST_ROW:
        row_start = load_i64(frame + ROW_START)
        rows.last_row(counter, num_rows(frame, 1), row_start, word(a, 2), word(a, 3), word(a, 4), word(a, 5))
    elif code == PARENT_ROWS:
        source = word(a, 2)
        source_start = 0 if source == 0 else load_i64(source + ROW_START)
        rows.parent_rows(
            counter, num_rows(frame, 0), load_i64(frame + ROW_SEQ), load_i64(frame + ROW_PLACE), source_start,
            word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7),
        )  # fmt: skip
    elif code == CONCAT:
        rows.concat(
            counter, num_rows(frame, word(a, 2)), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7)
        )
    elif code == RMS_NORM:
        rows.rms_norm(
            counter, num_rows(frame, word(a, 2)), word(a, 3), word(a, 4), word(a, 5), word(a, 6),
            load_f32(a + 7 * 8),
        )  # fmt: skip
    else:
        rows.silu_add(counter, num_rows(frame, word(a, 2)), word(a, 3), word(a, 4), word(a, 5), word(a, 6))


@native()
def _features(counter, a):
    """Launches that move rows between activations and the features of committed positions."""
    frame = word(a, 1)
    rows_here, here = num_rows(frame, 0), features.Features(
        word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7), word(a, 8)
    )  # fmt: skip
    if word(a, 0) == KEEP_FEATURES:
        features.keep_features(
            counter, rows_here, frame, word(a, 9), here, word(a, 10), word(a, 11), word(a, 12)
        )
    else:
        features.read_features(counter, rows_here, frame, word(a, 9), here, word(a, 10))


@native()
def _logits_kernels(counter, thread, a):
    """Launches over rows of logits that begin with the settings of requests."""
    code, frame = word(a, 0), word(a, 1)
    rows_here, place, requests = num_rows(frame, word(a, 2)), place_map(frame, word(a, 2)), _requests(a, 3)
    if code == EDIT_LOGITS:
        edits.edit_logits(
            counter, rows_here, requests, place, word(a, 9), word(a, 10), word(a, 11), word(a, 12), word(a, 13),
            word(a, 14), word(a, 15), word(a, 16), word(a, 17), word(a, 18),
        )  # fmt: skip
    elif code == FIND_KEPT:
        kept.find_kept(
            counter, rows_here, requests, place, word(a, 9), word(a, 10), word(a, 11), word(a, 12), word(a, 13),
            word(a, 14), word(a, 15), word(a, 16), word(a, 17) + thread * word(a, 18),
        )  # fmt: skip
    elif code == SAMPLE:
        sampling.sample(
            counter, rows_here, requests, place, word(a, 9), word(a, 10), word(a, 11), word(a, 12), word(a, 13),
            word(a, 14) + thread * word(a, 15),
        )  # fmt: skip
    else:
        found = logprobs.Found(word(a, 9), word(a, 10), word(a, 11), word(a, 12))
        wanted = logprobs.Wanted(word(a, 15), word(a, 16), word(a, 17), word(a, 18))
        logprobs.token_logprobs(
            counter, rows_here, requests, place, load_i64(frame + ROW_START), word(a, 13), word(a, 14), wanted, found,
            word(a, 19) + thread * word(a, 20),
        )  # fmt: skip


@native()
def _draft_kernels(counter, thread, a):
    """Launches that grow the tree of a draft."""
    code = word(a, 0)
    if code == EXPAND_TREE:
        candidates = draft.Candidates(word(a, 4), word(a, 5), word(a, 6), word(a, 7), word(a, 8), word(a, 9))
        level = draft.Level(
            word(a, 10),
            word(a, 11),
            word(a, 12),
            word(a, 13),
            word(a, 14),
            word(a, 15),
            word(a, 16),
            word(a, 17),
        )
        draft.expand_tree(counter, word(a, 1), word(a, 2), word(a, 3), candidates, level)
        return
    frame, space = word(a, 1), word(a, 2)
    rows_here = num_rows(frame, space)
    if code == TOP_TOKENS:
        draft.top_tokens(
            counter, rows_here, frame, space, word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7), word(a, 8),
            word(a, 9), word(a, 10) + thread * word(a, 11),
        )  # fmt: skip
    else:
        laws = draft.Laws(word(a, 10), word(a, 11), word(a, 12), word(a, 13), word(a, 14), word(a, 7))
        draft.draw_draft(
            counter, rows_here, frame, space, word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 8), word(a, 9),
            laws, word(a, 15) + thread * word(a, 16),
        )  # fmt: skip


@native()
def _sequence_kernels(counter, thread, a):
    """Launches that claim whole sequences: verdicts, and what makes them durable."""
    code, live = word(a, 0), num_rows(word(a, 1), 1)
    if code == ACCEPT_MATCH:
        accept.accept_match(
            counter, live, word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7), word(a, 8),
            word(a, 9),
        )  # fmt: skip
    elif code == ACCEPT_RATIO:
        trees = accept_ratio.Trees(
            word(a, 7), word(a, 8), word(a, 9), word(a, 10), word(a, 11), word(a, 12), word(a, 13)
        )
        laws = accept_ratio.Laws(
            word(a, 14), word(a, 15), load_i64(word(a, 1) + ROW_START), word(a, 16), word(a, 17), word(a, 18),
            word(a, 19), word(a, 20), word(a, 21), word(a, 22), word(a, 23), word(a, 24),
        )  # fmt: skip
        accept_ratio.accept_ratio(
            counter, live, trees, laws, word(a, 2), word(a, 3), word(a, 4), word(a, 5) + thread * word(a, 6)
        )
    else:
        kv_cache.kv_commit(
            counter, live, word(a, 2), word(a, 3), word(a, 4), word(a, 5), word(a, 6), word(a, 7), word(a, 8),
            word(a, 9), word(a, 10), word(a, 11), word(a, 12), word(a, 13),
        )  # fmt: skip


@native()
def _start_pass(control, num_launches, launch):
    """Reset the work counters, and number the live rows. Thread 0 alone."""
    for counter in range(COUNTERS_A_LAUNCH * num_launches):
        store_i64(control + FIRST_COUNTER + counter * 8, 0)
    index_rows(word(launch, 1))
    if word(launch, 2) != 0:
        index_rows(word(launch, 2))


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
        elif TOP_TOKENS <= code <= EXPAND_TREE:
            _draft_kernels(counter, thread, launch)
        elif code in (KEEP_FEATURES, READ_FEATURES):
            _features(counter, launch)
        elif code in (ACCEPT_MATCH, ACCEPT_RATIO, KV_COMMIT):
            _sequence_kernels(counter, thread, launch)
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
