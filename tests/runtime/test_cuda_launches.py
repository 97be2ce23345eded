"""Plans on the cuda backend: what tuning found reaches the kernels, and launches start early only where all wait.

Kernels are stubbed, so this runs without a device; that each kernel waits is read from its code in tests/aot.

Run: pytest tests/runtime/test_cuda_launches.py
"""

from dataclasses import replace

import pytest
import torch
from support.interpreted import device_executor
from support.stubbed import record_launches
from support.tiny_models import tiny_checkpoint

from tspec.core.dtypes import DType
from tspec.core.errors import ConfigError
from tspec.graph.plan import Bucket
from tspec.kernels.cuda.store import open_store
from tspec.kernels.cuda.tuned import AttentionTuned, Tuned, TunedTable
from tspec.kernels.tuned_store import FOLDER_VARIABLE
from tspec.models import PASS_KINDS
from tspec.runtime import cuda_executor
from tspec.runtime.cuda_bind import bind_device_plan
from tspec.runtime.cuda_executor import device_model, find_device

FOUND = Tuned(128, 32, 1, 4, 2)
FOUND_ATTENTION = AttentionTuned(chunk_tiles=2, row_tile=16, num_warps=8, num_stages=1)


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny_checkpoint(folder, "qwen3", tie=True, dtype=torch.bfloat16)
    return device_executor(folder)


@pytest.fixture
def launched(monkeypatch):
    """Kernel launches, recorded instead of run."""
    return record_launches(monkeypatch)


def launch(executor, kind, **changes):
    plan = executor.bind(kind, Bucket(2, 4)).plan
    bind_device_plan(plan, replace(executor._model, **changes)).launch()


@pytest.mark.parametrize("kind", PASS_KINDS)
@pytest.mark.parametrize("launch_pdl", [True, False])
def test_a_kernel_waits_exactly_where_it_is_launched_early(executor, launched, kind, launch_pdl):
    """One that is launched early without a wait would read what the launches before it have not written yet."""
    launch(executor, kind, launch_pdl=launch_pdl)
    assert len(launched) >= 8
    for name, _, _, options in launched:
        assert options["USE_PDL"] is launch_pdl, name
        assert options.get("launch_pdl", False) is launch_pdl, name


def test_what_tuning_found_reaches_the_kernels(executor, launched):
    spec = executor.bind("all", Bucket(2, 4)).plan
    heads = next(each.attrs for each in spec.launches if each.kind == "rope_attention")
    down = next(each for each in spec.launches if each.kind == "linear_add")
    n, k = spec.weights[next(name for name in down.inputs if name in spec.weights)].shape
    key = heads["num_heads"], heads["num_kv_heads"], heads["head_dim"], DType.BFLOAT16
    products = {("linear_add", n, k, DType.BFLOAT16): FOUND}
    launch(executor, "all", tuned=TunedTable(products, {key: FOUND_ATTENTION}))
    attention = [each.options for each in launched if each.name == "_rope_attention"]
    assert {each["CHUNK_TILES"] for each in attention} == {2}
    assert {(each["num_warps"], each["num_stages"]) for each in attention} == {(8, 1)}
    tiles = [each.options for each in launched if each.options.get("BLOCK_N") == FOUND.block_n]
    assert {(each["BLOCK_K"], each["num_stages"]) for each in tiles} == {(FOUND.block_k, FOUND.num_stages)}
    assert 0 < len(tiles) < sum(each.name == "_linear" for each in launched)


class Device:
    """What torch says of a device."""

    def __init__(self, monkeypatch, capability, hip=None, name="gfx942:sramecc+:xnack-"):
        properties = type("Properties", (), {"gcnArchName": name})
        for attribute, value in {
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "get_device_capability": lambda device: capability,
            "get_device_properties": lambda device: properties,
            "get_device_name": lambda device: "NVIDIA H200",
            "mem_get_info": lambda device: (123, 456),
        }.items():
            monkeypatch.setattr(torch.cuda, attribute, value)
        monkeypatch.setattr(torch.version, "hip", hip)


def test_a_device_is_found_by_its_architecture(monkeypatch):
    Device(monkeypatch, (9, 0))
    assert find_device() == (torch.device("cuda", 0), "sm_90", 123)
    Device(monkeypatch, (9, 4), hip="6.4")
    assert find_device() == (torch.device("cuda", 0), "gfx942", 123)


@pytest.mark.parametrize(("capability", "hip"), [((7, 5), None), ((9, 0), "6.4")])
def test_a_device_without_kernels_is_refused_before_anything_is_loaded(monkeypatch, capability, hip):
    Device(monkeypatch, capability, hip, name="gfx90a")
    with pytest.raises(ConfigError, match=r"device: got (sm_75|gfx90a), need sm_80 or newer"):
        find_device()


def test_no_device_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="Use device='cpu'"):
        find_device()


@pytest.mark.parametrize(("arch", "launches_early"), [("sm_80", False), ("sm_90", True), ("gfx942", False)])
def test_a_model_on_a_device_has_what_tuning_found_and_launches_early_where_it_can(
    monkeypatch, tmp_path, arch, launches_early
):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    Device(monkeypatch, (9, 0))
    side = 16 if arch == "gfx942" else None
    found = Tuned(64, 32, 1, 4, 2, side)
    open_store("NVIDIA H200", arch).put("linear", "bfloat16", found, n=64, k=64)
    caches = torch.zeros(1), torch.zeros(1)
    model = device_model(torch.device("cpu"), arch, {}, *caches)
    assert model.launch_pdl is launches_early
    assert model.tuned.for_product("linear", 64, 64, DType.BFLOAT16, arch) == found


def test_the_store_is_read_once_for_all_buckets(executor, monkeypatch):
    """A plan is bound from the table alone: no file is read, and so none is in a capture."""
    monkeypatch.setattr(cuda_executor, "read_table", None)
    monkeypatch.setattr("tspec.kernels.tuned_store._read_entries", None)
    bind_device_plan(executor.bind("last", Bucket(1, 64)).plan, executor._model)
