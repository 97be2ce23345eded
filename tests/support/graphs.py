"""Small graphs, random values for them, and what they are evaluated with."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from tspec.core.config import ModelConfig
from tspec.core.dtypes import DType
from tspec.core.shapes import BLOCK_TOKENS
from tspec.core.tree import CandidateTrees, fill_ancestors
from tspec.graph.cost import bind
from tspec.graph.evaluate import evaluate
from tspec.graph.ir import Graph, Role, Value
from tspec.graph.show import show
from tspec.kernels.reference import REFERENCES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TINY = ModelConfig(
    architecture="llama",
    vocab_size=40,
    hidden_size=24,
    intermediate_size=20,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_eps=1e-5,
    max_position=256,
    dtype=DType.FLOAT32,
)
MAX_POSITIONS = 256


def tiny_config(architecture: str = "llama", **changes: object) -> ModelConfig:
    return replace(TINY, architecture=architecture, **changes)


def ops_text(graph: Graph) -> str:
    """The printed graph without its name and inputs."""
    lines = show(graph).splitlines()
    return "\n".join(line.strip() for line in lines[1 + len(graph.inputs) :])


def hf_tensors(model: "PreTrainedModel") -> dict[str, torch.Tensor]:
    """The model's tensors by name, and the rotary tables as it computes them."""
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(MAX_POSITIONS)[None])
    half = cos.shape[-1] // 2
    return dict(model.state_dict()) | {"rope.cos": cos[0, :, :half], "rope.sin": sin[0, :, :half]}


def hf_logits(model: "PreTrainedModel", tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocabulary], with nothing cached."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


def tree_inputs(
    trees: CandidateTrees, prefix_len: list[int], *, num_blocks: int, seed: int = 0, is_greedy: bool = True
) -> dict[str, torch.Tensor]:
    """The static inputs for a batch of trees. Blocks are dealt out in random order, none to two rows."""
    rows, width = trees.tokens.shape
    ancestors, depth = np.zeros((rows, width), np.int64), np.zeros((rows, width), np.int32)
    fill_ancestors(trees.parents, trees.num_nodes, ancestors, depth)
    table = np.random.default_rng(seed).permutation(num_blocks).reshape(rows, -1).astype(np.int32)
    arrays = {
        "tokens": trees.tokens,
        "ancestors": ancestors,
        "depth": depth,
        "num_nodes": trees.num_nodes,
        "prefix_len": np.array(prefix_len, np.int32),
        "block_table": table,
        **sampling_inputs(rows, vocab=TINY.vocab_size),
    }
    if is_greedy:
        arrays["temperature"] = np.zeros(rows, np.float32)
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def sampling_inputs(rows: int, *, vocab: int) -> dict[str, np.ndarray]:
    """A request a row, greedy and sampled ones by turns, with filters, penalties and a bias."""
    turn = np.arange(rows)
    return {
        "temperature": np.where(turn % 2, 0.7, 0.0).astype(np.float32),
        "seed": turn.astype(np.int64) + 5,
        "top_k": np.where(turn % 4 == 1, 7, 0).astype(np.int32),
        "top_p": np.where(turn % 3, 0.8, 1.0).astype(np.float32),
        "min_p": np.where(turn % 2, 0.02, 0.0).astype(np.float32),
        "edits": (turn % 4).astype(np.int32),
        "penalties": np.tile(np.float32([1.3, 0.5, 0.25]), (rows, 1)),
        "counts": np.random.default_rng(1).integers(0, 4, (rows, vocab)).astype(np.int32),
        "bias": np.random.default_rng(2).normal(size=(rows, vocab)).astype(np.float32),
        "num_logprobs": (turn % 3 - 1).astype(np.int32),
    }


def weights_of(graph: Graph) -> dict[str, Value]:
    return {value.name: value for op in graph.ops for value in op.reads if value.role is Role.WEIGHT}


def bind_weights(graph: Graph, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A tensor for each weight of a graph: the one of its name, else its parts joined."""
    return {
        name: tensors[name] if name in tensors else torch.cat([tensors[part] for part in value.parts])
        for name, value in weights_of(graph).items()
    }


def empty_caches(graph: Graph, num_blocks: int) -> dict[str, torch.Tensor]:
    """A KV cache of NaN for each that a graph reads: a slot that is read before it is written shows."""
    states = {value.base: value.shape for op in graph.ops for value in op.reads if value.role is Role.STATE}
    dims = {"num_blocks": num_blocks}
    return {name: torch.full(bind(shape, dims), torch.nan) for name, shape in states.items()}


def run_tree(
    graph: Graph,
    tensors: dict[str, torch.Tensor],
    inputs: dict[str, torch.Tensor],
    caches: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Outputs and KV caches of one pass by references."""
    return evaluate(graph, bind_weights(graph, tensors) | inputs | caches, REFERENCES)


def random_tensors(plain: Graph, seed: int = 0) -> dict[str, torch.Tensor]:
    """Float64 values for the weights of a plain graph."""
    generator = torch.Generator().manual_seed(seed)
    dims = {"max_positions": MAX_POSITIONS}
    return {
        name: torch.randn(bind(value.shape, dims), generator=generator, dtype=torch.float64) * 0.4
        for name, value in weights_of(plain).items()
    }


def _random_input(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Inputs of which every graph that reads them makes something."""
    generator = torch.Generator().manual_seed(len(name))
    if name == "draft_logprobs":
        return torch.randn(shape, generator=generator).log_softmax(-1)
    high = {"targets": TINY.vocab_size, "is_sampled": 2, "mask": 1 << 31}[name]
    return torch.randint(0, high, shape, generator=generator, dtype=torch.int32)


SMALL_TREES = CandidateTrees(
    tokens=np.array([[3, 9, 11, 4, 9, 30], [7, 7, 8, 0, 0, 0]], np.int32),
    parents=np.array([[-1, 0, 0, 1, 2, 4], [-1, 0, 1, -1, -1, -1]], np.int32),
    num_nodes=np.array([6, 3], np.int32),
)


def assert_same_meaning(before: Graph, after: Graph, seed: int = 0) -> None:
    """Both graphs give the same outputs and KV caches on random weights, caches and trees, in float64."""
    num_blocks = 4
    inputs = tree_inputs(SMALL_TREES, [BLOCK_TOKENS - 2, 5], num_blocks=num_blocks, is_greedy=False)
    dims = {"B": SMALL_TREES.tokens.shape[0], "T": SMALL_TREES.tokens.shape[1]}
    for value in before.inputs:
        if value.name not in inputs:
            inputs[value.name] = _random_input(value.name, bind(value.shape, dims))
    tensors = random_tensors(before, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    caches = {
        name: torch.randn(cache.shape, generator=generator, dtype=torch.float64)
        for name, cache in empty_caches(before, num_blocks).items()
    }
    expected = run_tree(before, tensors, inputs, caches)
    found = run_tree(after, tensors, inputs, caches)
    assert list(expected) == list(found)
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
        )
