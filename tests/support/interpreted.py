"""An engine on the cuda lowering of a tiny checkpoint, over CPU tensors: launches run one by one in the interpreter."""

from pathlib import Path

import torch

from tspec.build import plan_maker
from tspec.checkpoint.hf_config import read_config
from tspec.checkpoint.weights import open_checkpoint, resolve_tying
from tspec.core.rope import rope_table
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.tree import MAX_NODES
from tspec.graph.plan import Bucket
from tspec.proposers.ngram import NgramProposer
from tspec.runtime.cuda_bind import DeviceModel, kv_tensors, load_device_weights
from tspec.runtime.cuda_executor import CudaExecutor
from tspec.runtime.loop import Engine

MAX_MODEL_LEN = 128
NUM_BLOCKS = 8
NUM_CANDIDATES = 3


def device_executor(folder: Path) -> CudaExecutor:
    """The executor of a checkpoint on the CPU's memory."""
    device = torch.device("cpu")
    checkpoint = open_checkpoint(folder)
    config = resolve_tying(read_config(folder), checkpoint)
    make_plan = plan_maker(config, MAX_MODEL_LEN, config.dtype)
    plan = make_plan("all", Bucket(1, 1))
    tables = rope_table(config.rope, config.head_dim, config.max_position, MAX_MODEL_LEN + MAX_NODES)
    weights = load_device_weights(
        plan, checkpoint.load, dict(zip(("rope.cos", "rope.sin"), tables, strict=True)), device
    )
    return CudaExecutor(
        make_plan, DeviceModel(device, "sm_80", weights, *kv_tensors(plan, NUM_BLOCKS, device))
    )


def interpreted_engine(folder: Path) -> Engine:
    """The whole loop over the executor, with an n-gram proposer (which a request may turn off)."""
    config = resolve_tying(read_config(folder), open_checkpoint(folder))
    return Engine(
        config,
        device_executor(folder),
        NgramProposer(SpeculativeConfig(num_speculative_tokens=NUM_CANDIDATES)),
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=2,
        max_candidates=NUM_CANDIDATES,
        node_budget=MAX_NODES,
    )
