"""Threads of a pass: the barrier, work claimed once each, sleeping and waking, the same bits for any number.

Run: pytest tests/kernels/test_sync.py
"""

import gc
import os
import threading
import time

import numpy as np
import pytest
from support.compiled_target import CompiledTarget
from support.cpu_pass import run_on_cpu, run_references
from support.kernel_case import random_trees
from support.kernel_cases import KERNEL_CASES
from support.tiny_models import tiny_checkpoint

from tspec.core.tree import CandidateTrees
from tspec.kernels.cpu.simd import load_i64, store_i64
from tspec.kernels.cpu.sync import FIRST_COUNTER, atomic_add, barrier
from tspec.kernels.jit import native
from tspec.runtime.memory import address, allocate
from tspec.runtime.threads import ThreadPool

MANY = (os.cpu_count() or 1) + 2
"""More threads than can run at a time."""

ROUNDS = 300


@native()
def meet(control, thread, num_threads, rounds, seen):
    """Each round write one's own word, wait, add up all words, wait; seen[thread, round] is the sum."""
    words = control + FIRST_COUNTER
    for number in range(rounds):
        store_i64(words + thread * 8, (number + 1) * (thread + 1))
        barrier(control, num_threads)
        total = 0
        for other in range(num_threads):
            total += load_i64(words + other * 8)
        store_i64(seen + (thread * rounds + number) * 8, total)
        barrier(control, num_threads)


@native()
def claim(control, num_threads, claimed, count):
    """Take numbers below `count` two at a time, and count how often each was taken."""
    barrier(control, num_threads)
    first = atomic_add(control + FIRST_COUNTER, 2)
    while first < count:
        for number in range(first, min(first + 2, count)):
            atomic_add(claimed + number * 8, 1)
        first = atomic_add(control + FIRST_COUNTER, 2)


def run_threads(function, num_threads: int) -> None:
    threads = [threading.Thread(target=function, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def num_threads_alive() -> int:
    """Without those of pools that other tests have left to the garbage collector."""
    gc.collect()
    return threading.active_count()


def small_case():
    return next(case for case in KERNEL_CASES if str(case) == "rope_attention-f32-24x8-after-0").build()


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4, MANY])
def test_nobody_passes_a_barrier_before_all_have_come(num_threads):
    control = allocate(FIRST_COUNTER + 8 * num_threads)
    seen = np.zeros((num_threads, ROUNDS), np.int64)
    run_threads(
        lambda number: meet(address(control), number, num_threads, ROUNDS, address(seen)), num_threads
    )
    each = np.arange(1, ROUNDS + 1) * (num_threads * (num_threads + 1) // 2)
    assert np.array_equal(seen, np.tile(each, (num_threads, 1)))


@pytest.mark.parametrize("num_threads", [1, 2, 4, MANY])
def test_work_is_claimed_once_and_all_of_it(num_threads):
    control = allocate(FIRST_COUNTER + 8)
    claimed = np.zeros(10_001, np.int64)
    run_threads(lambda number: claim(address(control), num_threads, address(claimed), 10_001), num_threads)
    assert (claimed == 1).all()


def test_sleeping_workers_wake_for_the_next_pass(monkeypatch):
    """Passes that come while workers spin, give up the CPU, nap, or sleep."""
    case = small_case()
    expected = run_on_cpu(case)["out"].numpy()
    pool = ThreadPool(3)
    monkeypatch.setattr("support.cpu_pass.pool", lambda num_threads: pool)
    for pause_s in (*(0, 0, 1e-5, 1e-4, 3e-3, 2e-2) * 20, 1.5):
        time.sleep(pause_s)
        assert np.array_equal(run_on_cpu(case, num_threads=3)["out"].numpy(), expected)
    pool.close()


def test_a_closed_pool_leaves_no_thread():
    before = num_threads_alive()
    pool = ThreadPool(4)
    assert num_threads_alive() == before + 3
    pool.close()
    pool.close()
    assert num_threads_alive() == before


def test_a_pool_that_nobody_closes_ends_with_its_last_reference():
    before = num_threads_alive()
    pool = ThreadPool(3)
    del pool
    assert num_threads_alive() == before


def test_pools_of_two_engines_do_not_disturb_each_other(monkeypatch):
    case = small_case()
    expected = run_references(case)["out"]
    pools = [ThreadPool(2), ThreadPool(2)]
    for turn in range(20):
        monkeypatch.setattr("support.cpu_pass.pool", lambda num_threads, turn=turn: pools[turn % 2])
        found = run_on_cpu(case, num_threads=2)["out"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_have_the_same_bits_for_any_number_of_threads(tmp_path, dtype):
    tiny_checkpoint(tmp_path, "qwen2", hidden=72, heads=6, kv_heads=2, vocab=131)
    tokens = np.random.default_rng(0).integers(0, 131, 200, dtype=np.int32)
    tree = random_trees((40, 11, 1), seed=1)
    trees = CandidateTrees(np.resize(tokens, tree.tokens.shape), tree.parents, tree.num_nodes)
    found = []
    for num_threads in (1, 2, 3, MANY):
        target = CompiledTarget(tmp_path, num_threads=num_threads, max_model_len=192, dtype=dtype)
        logits = [target.plain(tokens[:80].tolist())]
        logits += target.verify([tokens[:130].tolist(), tokens[5:70].tolist(), tokens[9:20].tolist()], trees)
        found.append(np.concatenate(logits).view(np.uint32))
        target.close()
    assert all(np.array_equal(found[0], other) for other in found[1:])
