"""Memory of the cuda executor: plans share one arena, buckets that do not fit give way to smaller ones.

Kernels are stubbed and tensors lie in the host's memory: what is proven is what the executor does with them.

Run: pytest tests/runtime/test_cuda_memory.py
"""

import logging

import pytest
import torch
from support.interpreted import device_executor
from support.tiny_models import tiny_checkpoint
from triton.runtime.jit import JITFunction

from tspec.core.errors import CaptureError
from tspec.graph.plan import Bucket
from tspec.runtime import cuda_executor
from tspec.runtime.cuda_bind import bind_device_plan
from tspec.runtime.device_memory import SharedMemory

PASSES = [(kind, Bucket(rows, nodes)) for rows in (1, 2, 4) for kind, nodes in (("all", 4), ("last", 64))]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def stubbed(monkeypatch):
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, grid, warmup, **options: None)


@pytest.fixture
def executor(tmp_path):
    tiny_checkpoint(tmp_path, "llama", tie=True, dtype=torch.bfloat16)
    return device_executor(tmp_path)


@pytest.fixture
def limit_mib(monkeypatch):
    """Makes an allocation of more than so many MiB fail, as a device's allocator would."""

    def limit(mib):
        def zeros(size, **options):
            result = torch.empty(size, **options).zero_()
            if result.nbytes > mib * MIB:
                raise torch.OutOfMemoryError("no room")
            return result

        stand_in = type("Torch", (), {"zeros": staticmethod(zeros), "uint8": torch.uint8})
        stand_in.float32, stand_in.int32, stand_in.Tensor = torch.float32, torch.int32, torch.Tensor
        monkeypatch.setattr("tspec.runtime.device_memory.torch", stand_in)

    return limit


def need_mib(executor, rows):
    """The arena of the largest pass of so many rows."""
    return executor._make_plan("last", Bucket(rows, 64)).arena_bytes / MIB


def test_buckets_that_do_not_fit_give_way_to_smaller_ones(executor, limit_mib, caplog):
    limit_mib(need_mib(executor, 2))
    assert executor.capture(PASSES) == 2
    assert {bucket.rows for _, bucket in executor._bound} == {1, 2}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "Bucket 4x64 of pass last does not fit in device memory: at most 2 sequences" in caplog.text


def test_buckets_of_as_many_rows_that_did_fit_are_given_back(executor, monkeypatch):
    def bind(plan, model, memory):
        if plan.bucket == Bucket(4, 4):
            raise torch.OutOfMemoryError("no room")
        return bind_device_plan(plan, model, memory)

    monkeypatch.setattr(cuda_executor, "bind_device_plan", bind)
    assert executor.capture(PASSES) == 2
    assert {bucket.rows for _, bucket in executor._bound} == {1, 2}


def test_all_buckets_that_fit_are_captured(executor, caplog):
    assert executor.capture(PASSES) == 4
    assert executor._bound.keys() == set(PASSES)
    assert caplog.records == []


def test_an_executor_in_which_nothing_fits_says_which_bucket_and_what_to_do(executor, limit_mib):
    limit_mib(0)
    with pytest.raises(
        CaptureError, match=r"bucket 1x64 of pass last: got out of device memory.*Lower max_num"
    ):
        executor.capture(PASSES)


def test_plans_share_the_memory_of_the_largest(executor):
    executor.capture(PASSES)
    arenas = [bound.arena for bound in executor._bound.values()]
    assert len({arena.data_ptr() for arena in arenas}) == 1
    assert len({bound.scratch.counters.data_ptr() for bound in executor._bound.values()}) == 1
    largest = max(bound.plan.arena_bytes for bound in executor._bound.values())
    scratch = max(bound.scratch.partials.nbytes for bound in executor._bound.values())
    assert executor._memory.size_bytes < 1.5 * (largest + scratch)


def test_a_plan_that_needs_more_gets_its_own_and_leaves_the_others_theirs():
    memory = SharedMemory(torch.device("cpu"))
    small, same = memory.arena(100), memory.arena(60)
    large, after = memory.arena(1000), memory.arena(80)
    assert small.data_ptr() == same.data_ptr() != large.data_ptr() == after.data_ptr()
    assert [piece.numel() for piece in (small, same, large, after)] == [100, 60, 1000, 80]
    assert memory.size_bytes == 1100


def test_the_report_has_a_line_for_each_bucket_and_one_for_what_they_share(executor):
    executor.capture(PASSES)
    lines = executor.report().splitlines()
    assert len(lines) == len(PASSES) + 1
    for kind, bucket in PASSES:
        (line,) = [line for line in lines if line.split()[:2] == [kind, str(bucket)]]
        mib = executor.bind(kind, bucket).size_bytes / MIB
        assert float(line.split()[2]) == pytest.approx(mib, abs=0.006)
    assert lines[-1].startswith("shared by all")
