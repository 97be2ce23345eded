"""The passes of `acceptance_decoding` on the cuda lowering: on a device, or over CPU tensors in the interpreter."""

from dataclasses import dataclass

import torch
from support.acceptance_decoding import Arrays, Load, TablePass
from support.device_pass import CPU

from tspec.graph.plan import Plan
from tspec.runtime.cuda_bind import DeviceModel, bind_device_plan, kv_tensors, load_device_weights


@dataclass
class DeviceTablePass(TablePass):
    """One pass whose logits are looked up in a table, on `device`; launches run one by one."""

    device: torch.device = CPU
    arch: str = "sm_80"

    def bind(self, plan: Plan, load: Load, tables: Arrays) -> Arrays:
        """Give the pass its memory; returns its static inputs."""
        weights = load_device_weights(plan, load, tables, self.device)
        model = DeviceModel(self.device, self.arch, weights, *kv_tensors(plan, 1, self.device))
        self.on_device = bind_device_plan(plan, model)
        return self.on_device.inputs.arrays

    def launch(self) -> Arrays:
        """Run on what the static inputs are; returns all outputs."""
        self.on_device.inputs.to_device()
        self.on_device.launch()
        self.on_device.outputs.to_host()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.on_device.outputs.arrays
