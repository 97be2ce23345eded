"""Runs the cases of `cpu_pass` on the cuda lowering instead: over CPU tensors in the interpreter, or on a device."""

from dataclasses import dataclass
from typing import Any

import torch
from support.cpu_pass import MAX_MODEL_LEN, Case, run_references
from support.tolerance import Tolerance

from tspec.graph.ir import FEATURES
from tspec.graph.lower import lower
from tspec.graph.plan import Bucket
from tspec.runtime.cuda_bind import (
    DeviceModel,
    DevicePlan,
    bind_device_plan,
    feature_tensor,
    kv_tensors,
    load_device_weights,
)


@dataclass(frozen=True)
class BoundCase:
    """A case in its place: inputs and states as the case has them, arena and scratch full of NaN."""

    bound: DevicePlan
    states: dict[str, torch.Tensor]

    def run(self) -> dict[str, torch.Tensor]:
        """The graph's outputs by name, padding included, and its states as they are after the pass."""
        self.bound.launch()
        self.bound.outputs.to_host()
        if self.bound.arena.is_cuda:
            torch.cuda.synchronize()
        outputs = {name: torch.from_numpy(array.copy()) for name, array in self.bound.outputs.arrays.items()}
        return outputs | {name: memory.cpu() for name, memory in self.states.items()}


CPU = torch.device("cpu")


def bind_case(
    case: Case, *, device: torch.device = CPU, arch: str = "sm_80", launch_pdl: bool = False
) -> BoundCase:
    rows, nodes = case.inputs["tokens"].shape
    plan = lower(case.graph, Bucket(rows, nodes), max_model_len=MAX_MODEL_LEN, width=case.width)
    num_blocks = case.inputs["block_table"].size
    tables = {name: case.weights[name].numpy() for name, spec in plan.weights.items() if not spec.parts}
    weights = load_device_weights(plan, case.weights.__getitem__, tables, device)
    k_cache, v_cache = kv_tensors(plan, num_blocks, device)
    features = feature_tensor(plan, num_blocks, device)
    sides = {"k_cache": k_cache, "v_cache": v_cache}
    states: dict[str, torch.Tensor] = {}
    for name in plan.states:
        side, _, layer = name.partition(".")
        memory = features if name == FEATURES else sides[side][int(layer)]
        assert memory is not None, name
        states[name] = memory.copy_(case.caches[name])
    model = DeviceModel(device, arch, weights, k_cache, v_cache, launch_pdl=launch_pdl, features=features)
    bound = bind_device_plan(plan, model)
    bound.arena.fill_(0xFF)
    bound.scratch.partials.fill_(torch.nan)
    for name, array in case.inputs.items():
        bound.inputs.arrays[name][...] = array
    bound.inputs.to_device()
    return BoundCase(bound, states)


def hold(case: Case, tolerance: Tolerance, **options: Any) -> dict[str, torch.Tensor]:
    """Whole numbers are those of the references, others within `tolerance`; in every place, also where nothing is.

    options   those of `bind_case`
    """
    found, expected = bind_case(case, **options).run(), run_references(case)
    assert found.keys() >= expected.keys()
    for name, want in expected.items():
        if want.dtype.is_floating_point:
            torch.testing.assert_close(
                found[name].double(), want.double(), rtol=tolerance.relative, atol=tolerance.absolute,
                equal_nan=True, msg=lambda text, name=name: f"{name}: {text}",
            )  # fmt: skip
        else:
            assert torch.equal(found[name], want), name
    return found
