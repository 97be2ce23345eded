"""Plans share their memory, so no pass may read what another left there: it is filled with NaN before each.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_shared_memory.py
"""

import numpy as np
import pytest
import torch
from support.interpreted import device_executor
from support.tiny_models import tiny_checkpoint

from tspec.core.tree import CandidateTrees
from tspec.graph.plan import Bucket
from tspec.models import PASS_KINDS
from tspec.runtime.inputs import PassInputs

ALL_BITS = 0xFF
"""A byte of which each float dtype makes NaN, and int32 makes -1."""


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny_checkpoint(
        folder, "qwen3", dtype=torch.bfloat16,
        hidden=32, heads=2, kv_heads=1, intermediate=48, vocab=64, layers=2,
    )  # fmt: skip
    return device_executor(folder)


def inputs() -> PassInputs:
    """A row of three nodes of which two are siblings, and one of a single node; a third row is unused."""
    trees = CandidateTrees(
        np.array([[3, 9, 11], [7, 0, 0]], np.int32),
        np.array([[-1, 0, 0], [-1, -1, -1]], np.int32),
        np.array([3, 1], np.int32),
    )
    return PassInputs(trees, np.array([5, 70], np.int32), np.array([[0, 1], [2, 3]], np.int32))


@pytest.mark.parametrize("kind", PASS_KINDS)
def test_a_pass_reads_nothing_that_another_left_in_shared_memory(executor, kind):
    bucket = Bucket(4, 4)
    bound = executor.bind(kind, bucket)
    caches = executor._model.k_cache, executor._model.v_cache
    found = []
    for fill in (0, ALL_BITS):
        for cache in caches:
            cache.fill_(0.25)
        bound.arena.fill_(fill)
        bound.scratch.partials.view(torch.uint8).fill_(fill)
        outputs = executor.run(kind, bucket, inputs())
        found.append(
            [array.copy() for array in outputs.values()] + [cache.float().numpy().copy() for cache in caches]
        )
        assert not bound.scratch.counters.any()
    for clean, dirty in zip(*found, strict=True):
        np.testing.assert_array_equal(clean, dirty)
        assert not np.isnan(dirty).any()
