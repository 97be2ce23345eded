"""Runs small graphs through the compiler's own path to the CPU kernels: check, lower, bind, run.

Float rows come back dense, as the kernels keep them; `dense` does the same to what the references give.
KV caches are laid out by hand, from the description in `kernels/cpu/kv_cache.py`, not by the code under test.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from tspec.core.dtypes import DType
from tspec.core.shapes import BLOCK_TOKENS
from tspec.core.tree import CandidateTrees, fill_ancestors
from tspec.graph.builder import STATIC_INPUTS
from tspec.graph.check import check
from tspec.graph.evaluate import evaluate
from tspec.graph.ir import Graph, Op, Value
from tspec.graph.lower import lower
from tspec.graph.plan import Bucket
from tspec.kernels.cpu.tuned import CpuTable
from tspec.kernels.reference import REFERENCES
from tspec.runtime.bind import NOT_TUNED, bind_plan
from tspec.runtime.kv_memory import allocate_states
from tspec.runtime.threads import ThreadPool
from tspec.runtime.torch_dtypes import TORCH_DTYPES
from tspec.runtime.weights import pack_weights

Tensors = Mapping[str, torch.Tensor]
Arrays = Mapping[str, np.ndarray]

PADDED = ("threshold", "log_sum", "logprobs", "top_logprobs", "law", "scores", "next_scores")
"""Float outputs that the host reads by sequence and node; padding has a place among them. Last parts of names."""

MAX_MODEL_LEN = 448
"""So that a sequence has 8 blocks, tree included."""


@dataclass(frozen=True, slots=True)
class Case:
    """A graph and all that it reads. Weights are given in their own dtypes, inputs as the host fills them.

    caches   the states of the graph: KV caches [block, head, 64, D], features [block, 64, F]
    width    nodes of a level of a draft's tree, in graphs that grow one
    """

    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    weights: Tensors
    inputs: Arrays
    caches: Tensors
    extra_inputs: tuple[Value, ...] = ()
    width: int = 1

    @property
    def graph(self) -> Graph:
        return check(Graph("case", self.ops, (*STATIC_INPUTS, *self.extra_inputs), self.outputs))

    def live_rows(self, name: str) -> np.ndarray:
        """How many rows of each sequence are live in an output [B, R, …]."""
        rows = next(value.shape[1] for value in self.outputs if value.name == name)
        counts = self.inputs["level_nodes" if rows == "W" else "num_nodes"]
        return np.minimum(counts, 1) if rows == 1 else counts

    def is_dense(self, name: str) -> bool:
        """Whether an output has no padding between its rows."""
        dtypes = {value.name: value.dtype for value in self.outputs}
        return dtypes.get(name) is DType.FLOAT32 and not is_padded(name)


@functools.cache
def pool(num_threads: int) -> ThreadPool:
    return ThreadPool(num_threads)


def static_inputs(trees: CandidateTrees, prefix_len: list[int], seed: int = 0) -> dict[str, np.ndarray]:
    """What the host fills: blocks are dealt out in random order, and none belongs to two rows."""
    rows, width = trees.tokens.shape
    ancestors, depth = np.zeros((rows, width), np.int64), np.zeros((rows, width), np.int32)
    fill_ancestors(trees.parents, trees.num_nodes, ancestors, depth)
    num_blocks = rows * ((MAX_MODEL_LEN + BLOCK_TOKENS) // BLOCK_TOKENS)
    table = np.random.default_rng(seed).permutation(num_blocks).reshape(rows, -1)
    return {
        "tokens": trees.tokens,
        "ancestors": ancestors,
        "depth": depth,
        "num_nodes": trees.num_nodes,
        "prefix_len": np.array(prefix_len, np.int32),
        "block_table": table.astype(np.int32),
    }


def run_on_cpu(case: Case, *, num_threads: int = 1, tuned: CpuTable = NOT_TUNED) -> dict[str, torch.Tensor]:
    """The graph's outputs by name, and its KV caches as they are after the pass."""
    rows, nodes = case.inputs["tokens"].shape
    plan = lower(case.graph, Bucket(rows, nodes), max_model_len=MAX_MODEL_LEN, width=case.width)
    tables = {name: case.weights[name].numpy() for name, spec in plan.weights.items() if not spec.parts}
    weights = pack_weights(plan, case.weights.__getitem__, tables)
    states = allocate_states(plan.states, case.inputs["block_table"].size)
    for name, memory in states.items():
        memory[:] = _cache_bytes(name, case.caches[name], plan.states[name][1])
    bound = bind_plan(plan, weights, states, num_threads, tuned)
    for name, array in case.inputs.items():
        bound.inputs[name][...] = array
    pool(num_threads).run(bound.launches)
    found = {name: _dense_output(name, array, case) for name, array in bound.outputs.items()}
    return found | {name: _cache_from(name, states[name], case.caches[name]) for name in states}


def run_references(case: Case, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """What `run_on_cpu` should give; float32 weights take part in `dtype`."""
    wide = {
        name: tensor.to(dtype) if tensor.dtype == torch.float32 else tensor
        for name, tensor in (case.weights | case.caches).items()
    }
    inputs = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in case.inputs.items()}
    results = evaluate(case.graph, wide | inputs, REFERENCES)
    return {
        name: dense(result, case.live_rows(name)) if case.is_dense(name) else result
        for name, result in results.items()
    }


def dense(rows: torch.Tensor, counts: np.ndarray) -> torch.Tensor:
    """[B, R, X] without padding, [live rows, X]; `counts` [B] are the live ones of each sequence."""
    return torch.cat([rows[row, :count] for row, count in enumerate(counts.tolist())])


def is_padded(name: str) -> bool:
    """Whether a float output has a place for each node, padding included."""
    return name.rpartition(".")[2] in PADDED


def _dense_output(name: str, array: np.ndarray, case: Case) -> torch.Tensor:
    found = torch.from_numpy(array.copy())
    if not case.is_dense(name):
        return found
    return found.reshape(-1, array.shape[-1])[: case.live_rows(name).sum()]


def _cache_bytes(name: str, cache: torch.Tensor, dtype: DType) -> np.ndarray:
    """[block, head, 64, D] as the kernels lay it out: keys transposed, bfloat16 in pairs; values padded."""
    cache = cache.to(TORCH_DTYPES[dtype])
    if cache.ndim == 3:  # features lie as they are
        return cache.contiguous().view(-1).view(torch.uint8).numpy()
    blocks, heads, slots, dim = cache.shape
    if name.startswith("v_cache"):
        laid = torch.nn.functional.pad(cache, (0, -dim % 16))
    elif dtype is DType.BFLOAT16:
        laid = cache.view(blocks, heads, slots, dim // 2, 2).transpose(2, 3)
    else:
        laid = cache.transpose(2, 3)
    return laid.contiguous().view(-1).view(torch.uint8).numpy()


def _cache_from(name: str, memory: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """The inverse of `_cache_bytes`."""
    flat = torch.from_numpy(memory.copy()).view(like.dtype)
    if like.ndim == 3:
        return flat.view(like.shape)
    blocks, heads, slots, dim = like.shape
    if name.startswith("v_cache"):
        return flat.view(blocks, heads, slots, -1)[..., :dim]
    if like.dtype == torch.bfloat16:
        return flat.view(blocks, heads, dim // 2, slots, 2).transpose(2, 3).reshape(like.shape)
    return flat.view(blocks, heads, dim, slots).transpose(2, 3)
