"""A policy file at the start of an engine: whether it is of this machine and model, and what it says of the method."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import llvmlite
import numba

from tspec import __version__
from tspec.checkpoint.policy_file import config_hash, read_policy
from tspec.core.config import ModelConfig
from tspec.core.policy import Policy, PolicyKey
from tspec.core.speculative_config import SpeculativeConfig
from tspec.kernels.cpu.host import cpu_model, read_host, usable_cpus

if TYPE_CHECKING:
    from tspec.build import BuildOptions


def apply_policy(
    options: "BuildOptions", speculative: SpeculativeConfig, folder: Path, config: ModelConfig
) -> tuple[SpeculativeConfig, Policy | None]:
    """Read the policy that the options name, and let it fill in what the user left open.

    config   of the target, with the dtype that it runs in
    Errors   ConfigError for a file that is damaged, or of another machine, version or model
    """
    if options.policy is None:
        return speculative, None
    policy = read_policy(Path(options.policy))
    policy.key.check(policy_key(options, folder, config), policy.source)
    model = None if speculative.model is None else config_hash(Path(speculative.model))
    return policy.with_settings(speculative, model), policy


def policy_key(options: "BuildOptions", folder: Path, config: ModelConfig) -> PolicyKey:
    """What a policy that is measured here and now holds for."""
    threads = options.num_threads or usable_cpus()
    versions = f"tspec {__version__}, numba {numba.__version__}, llvmlite {llvmlite.__version__}"
    here = PolicyKey(
        device=f"{cpu_model()}, {usable_cpus()} CPUs",
        backend=read_host().name,
        dtype=config.dtype.value,
        threads=threads,
        model=config_hash(folder),
        libraries=versions,
    )
    return _on_cuda(here) if options.device == "cuda" else here


def _on_cuda(here: PolicyKey) -> PolicyKey:
    """Imports Triton, which not every machine has."""
    import torch
    import triton

    from tspec.runtime.cuda_executor import find_device

    device, arch, _ = find_device()
    versions = f"tspec {__version__}, torch {torch.__version__}, triton {triton.__version__}"
    name = torch.cuda.get_device_name(device)
    return replace(here, device=name, backend=arch, threads=1, libraries=versions)
