"""A step of the cuda backend allocates nothing, reads no device value and calls no other op than its kernels.

Kernels are stubbed: what is proven is the code around them, which a capture records once and for all.

Run: pytest tests/runtime/test_capture_safety.py
"""

import pytest
import torch
from support.interpreted import device_executor
from support.stubbed import Refuse, record_launches
from support.tiny_models import tiny_checkpoint

from tspec.core.errors import ContractError
from tspec.graph.plan import Bucket

PASSES = [
    *((kind, Bucket(2, 4)) for kind in ("all", "all_filtered", "all_edited", "prompt", "logits")),
    *((kind, Bucket(2, 4)) for kind in ("ratio_filtered", "ratio_edited")),
    ("all", Bucket(1, 1)),
    *((kind, Bucket(1, 64)) for kind in ("last", "last_filtered", "last_edited")),
    ("none", Bucket(2, 64)),
]


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny_checkpoint(folder, "qwen3", tie=True, dtype=torch.bfloat16)
    return device_executor(folder)


@pytest.fixture
def launched(monkeypatch):
    """Kernel launches, recorded instead of run."""
    return record_launches(monkeypatch)


@pytest.mark.parametrize(("kind", "bucket"), PASSES, ids=str)
def test_a_step_is_its_kernels_and_nothing_else(executor, launched, kind, bucket):
    bound = executor.bind(kind, bucket)
    with Refuse():
        bound.launch()
    assert len(launched) >= len(bound.launches)


@pytest.mark.parametrize(("kind", "bucket"), PASSES, ids=str)
def test_every_step_launches_the_same_on_the_same_addresses(executor, launched, kind, bucket):
    bound = executor.bind(kind, bucket)
    bound.launch()
    first = list(launched)
    launched.clear()
    bound.inputs.tensors["num_nodes"].fill_(1)
    bound.inputs.tensors["prefix_len"].fill_(100)
    bound.launch()
    assert launched == first


def test_a_layer_is_five_launches_and_the_rest_at_most_six(executor, launched):
    executor.bind("all", Bucket(1, 8)).launch()
    assert len(launched) <= 5 * 2 + 6


def test_an_op_without_a_kernel_is_named(executor, tmp_path):
    from dataclasses import replace

    from tspec.runtime.cuda_bind import bind_device_plan

    bound = executor.bind("all", Bucket(1, 1))
    odd = replace(bound.plan, launches=(replace(bound.plan.launches[0], kind="conv"),))
    with pytest.raises(ContractError, match="launch 0: got conv, need one of linear"):
        bind_device_plan(odd, executor._model)
