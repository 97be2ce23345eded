"""Random candidates of drawing proposers, as the op `accept_ratio` gets them: trees, blocks, greedy rows, filters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from support.cpu_pass import Case, run_on_cpu, static_inputs
from support.kernel_case import chains, random_trees

from tspec.core.dtypes import DType
from tspec.core.sampling import DRAWN, DRAWN_CHAIN
from tspec.core.tree import CandidateTrees
from tspec.graph.builder import weight
from tspec.graph.ir import Op, Role, Shape, Value
from tspec.graph.static_inputs import IS_SAMPLED, SEED, STATIC_INPUTS, TEMPERATURE, draft_logprobs_input
from tspec.kernels.reference import REFERENCES
from tspec.kernels.reference.accept_ratio import DrawnTree, NoiseChooser, decide, drawn_tree

CLEAR_MARGIN = 1e-4
"""Decisions closer than this in float64 might fall the other way in float32: such seeds are not used."""

F32, I32 = DType.FLOAT32, DType.INT32

Operands = dict[str, np.ndarray | None]

ORDER = (
    "node_tokens", "tokens", "ancestors", "depth", "num_nodes", "prefix_len", "logits", "temperature", "seed",
    "threshold", "first_tie", "log_sum", "is_sampled", "draft_logprobs", "draft_index",
)  # fmt: skip


@dataclass(frozen=True)
class Draft:
    """What the candidates of a batch are like.

    counts         nodes a row; at most `vocab`, so that every node may have siblings enough
    is_block       chains that are verified as blocks; else random trees
    temperatures   of the target, by row
    spread         of the noise on the draft's logits: 0 is a draft that is the target
    certain        share of nodes whose children are certain
    dropped        share of leaves whose draw was dropped; none of a draft that is the target
    draft_vocab    tokens that the draft knows; None for all
    """

    counts: Sequence[int]
    vocab: int
    seed: int
    is_block: bool = False
    temperatures: Sequence[float] = (1.0, 0.7, 0.0, 1.6)
    spread: float = 1.0
    certain: float = 0.2
    dropped: float = 0.0
    draft_vocab: int | None = None

    def operands(self) -> Operands:
        """Operands of the op by name; seeds are such that no decision is a near-tie."""
        generator = np.random.default_rng(self.seed)
        trees = chains(self.counts) if self.is_block else random_trees(self.counts, self.seed)
        rows, width = trees.tokens.shape
        temperature = np.resize(np.array(self.temperatures, np.float32), rows)
        logits = (2 * generator.normal(size=(rows, width, self.vocab))).astype(np.float32)
        index, known = self._known_tokens(generator)
        scores = logits[:, :, known] / np.maximum(temperature, 0.5)[:, None, None]
        draft = _log_softmax(scores + self.spread * generator.normal(size=scores.shape))
        tokens = known[_draws(generator, draft, trees)]
        found: Operands = static_inputs(
            CandidateTrees(tokens, trees.parents, trees.num_nodes), generator.integers(0, 300, rows).tolist()
        )
        found |= {"logits": logits, "temperature": temperature, "draft_index": index}
        found |= {"draft_logprobs": draft, "is_sampled": self._sampled(generator, trees)}
        found |= _filters(generator, found)
        return found | _clear_seeds(generator, found)

    def _known_tokens(self, generator: np.random.Generator) -> tuple[np.ndarray | None, np.ndarray]:
        """(draft_index, the target's number of each token of the draft)"""
        if self.draft_vocab is None:
            return None, np.arange(self.vocab, dtype=np.int32)
        known = generator.permutation(self.vocab)[: self.draft_vocab].astype(np.int32)
        index = np.full(self.vocab, -1, np.int32)
        index[known] = np.arange(self.draft_vocab)
        return index, known

    def _sampled(self, generator: np.random.Generator, trees: CandidateTrees) -> np.ndarray:
        rows, width = trees.tokens.shape
        has_child = np.zeros((rows, width), bool)
        for row, count in enumerate(trees.num_nodes.tolist()):
            has_child[row, trees.parents[row, 1:count]] = True
        chance = generator.random((rows, width))
        # Behind a dropped draw of a draft that is the target, nothing but rounding is left to draw from.
        dropped = self.dropped if self.spread > 0 else 0.0
        if self.is_block:
            return np.where(has_child | (chance < dropped), DRAWN_CHAIN, 0).astype(np.int32)
        return np.where(chance < np.where(has_child, 1 - self.certain, dropped), DRAWN, 0).astype(np.int32)


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    return torch.from_numpy(scores).log_softmax(-1).float().numpy()


def _draws(generator: np.random.Generator, draft: np.ndarray, trees: CandidateTrees) -> np.ndarray:
    """The place in the draft's vocabulary of each node's token: siblings are drawn without replacement."""
    order = np.argsort(-(draft + generator.gumbel(size=draft.shape)), axis=-1)
    places = np.zeros(trees.tokens.shape, np.int64)
    for row, count in enumerate(trees.num_nodes.tolist()):
        met = [0] * count
        for node, parent in enumerate(trees.parents[row, 1:count].tolist(), start=1):
            places[row, node] = order[row, parent, met[parent]]
            met[parent] += 1
    return places


def _filters(generator: np.random.Generator, found: Operands) -> Operands:
    """What `find_kept` says: half the rows keep all."""
    rows = len(found["num_nodes"])
    is_on = generator.random(rows) < 0.5
    top_k = np.where(is_on, generator.integers(2, 30, rows), 0).astype(np.int32)
    top_p = np.where(is_on, generator.uniform(0.3, 1, rows), 1).astype(np.float32)
    settings = (found["temperature"], top_k, top_p, np.where(is_on, 0.02, 0).astype(np.float32))
    arrays = (found["logits"], *settings, found["num_nodes"])
    kept = REFERENCES["find_kept"]({}, *map(torch.from_numpy, arrays))
    return dict(zip(("threshold", "first_tie", "log_sum"), (each.numpy() for each in kept), strict=True))


@dataclass
class _Watch:
    """A chooser that passes on the decisions of another, and remembers the closest one."""

    chooser: NoiseChooser
    margin: float = np.inf

    def target(self, node: int) -> int:
        return self.chooser.target(node)

    def accept(self, candidate: int, probability: float) -> bool:
        for factor in (1 - CLEAR_MARGIN, 1 + CLEAR_MARGIN):
            if self.chooser.accept(candidate, probability * factor) != self.chooser.accept(
                candidate, probability
            ):
                self.margin = 0.0
        return self.chooser.accept(candidate, probability)

    def draw(self, node: int, weights: torch.Tensor) -> int:
        noisy = self.chooser.noisy(node, weights).topk(min(2, len(weights))).values
        if len(noisy) > 1:
            self.margin = min(self.margin, float(noisy[0] - noisy[1]))
        return self.chooser.draw(node, weights)


def _clear_seeds(generator: np.random.Generator, found: Operands) -> Operands:
    """Seeds, and the target's own samples with them, for which no decision of the reference is close."""
    rows = len(found["num_nodes"])
    seeds = generator.integers(0, 1 << 63, rows)
    found = found | {"seed": seeds, "node_tokens": np.zeros_like(found["tokens"])}
    tensors = as_tensors(found)
    names = ("logits", "temperature", "seed", "prefix_len", "depth", "num_nodes", "threshold", "first_tie")
    for row in range(rows):
        while True:
            (node_tokens,) = REFERENCES["sample"]({}, *(tensors[name] for name in names))
            tensors["node_tokens"][row] = node_tokens[row]
            if closest_decision(tensors, row) > CLEAR_MARGIN:
                break
            tensors["seed"][row] = int(generator.integers(0, 1 << 63))
    return {name: tensors[name].numpy() for name in ("seed", "node_tokens")}


def closest_decision(tensors: dict[str, torch.Tensor | None], row: int) -> float:
    """How far the closest decision of the reference on this row is from falling the other way."""
    noise = (int(tensors["seed"][row]), int(tensors["prefix_len"][row]))
    watch = _Watch(NoiseChooser(*noise, tensors["depth"][row].tolist(), tensors["node_tokens"][row].tolist()))
    decide(tree_of(tensors, row), watch)
    return watch.margin


def tree_of(tensors: dict[str, torch.Tensor | None], row: int) -> DrawnTree:
    """What the decisions of the reference see of one row."""
    given = ("tokens", "ancestors", "depth", "num_nodes", "logits", "temperature", *ORDER[9:])
    return drawn_tree(row, *(tensors[name] for name in given))


def as_tensors(found: Operands) -> dict[str, torch.Tensor | None]:
    return {
        name: None if array is None else torch.from_numpy(np.ascontiguousarray(array))
        for name, array in found.items()
    }


def reference_verdict(found: Operands) -> tuple[torch.Tensor, ...]:
    """(out_tokens, num_out, path) by the reference."""
    tensors = as_tensors(found)
    return REFERENCES["accept_ratio"]({}, *(tensors[name] for name in ORDER))


def run_kernel(found: Operands, num_threads: int = 1) -> tuple[torch.Tensor, ...]:
    """(out_tokens, num_out, path) by the CPU kernel, through lowering and binding."""
    rows, width, vocab = found["logits"].shape
    numbers, logits = _input("numbers", ("B", "T"), I32), Value("logits", ("B", "T", vocab), F32)
    table = weight("logits.table", (rows * width, vocab), F32)
    given = {name: value for name, value in _values(found).items() if found[name] is not None} | {
        "logits": logits
    }
    outs = tuple(Value(name, ("B", "T"), I32) for name in ("out_tokens", "path"))
    outs = (outs[0], Value("num_out", ("B",), I32), outs[1])
    ops = (
        Op("embed", (logits,), (numbers, table)),
        Op("accept_ratio", outs, tuple(given.get(name) for name in ORDER)),
    )
    extra = (
        numbers,
        *(each for name, each in given.items() if each not in STATIC_INPUTS and name != "logits"),
    )
    inputs = {name: array for name, array in found.items() if name != "logits" and array is not None}
    inputs["numbers"] = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    weights = {"logits.table": torch.from_numpy(found["logits"].reshape(-1, vocab))}
    result = run_on_cpu(Case(ops, outs, weights, inputs, {}, extra), num_threads=num_threads)
    return tuple(result[each.name] for each in outs)


def _values(found: Operands) -> dict[str, Value]:
    """The operands of the op besides the logits, as values that the host fills."""
    nodes = ("B", "T")
    static = {each.name: each for each in (*STATIC_INPUTS, TEMPERATURE, SEED, IS_SAMPLED)}
    own = {
        "node_tokens": _input("node_tokens", nodes, I32),
        "threshold": _input("threshold", nodes, F32),
        "first_tie": _input("first_tie", nodes, I32),
        "log_sum": _input("log_sum", nodes, F32),
        "draft_logprobs": draft_logprobs_input(found["draft_logprobs"].shape[-1]),
        "draft_index": _input("draft_index", (found["logits"].shape[-1],), I32),
    }
    return {name: (static | own)[name] for name in ORDER if name != "logits"}


def _input(name: str, shape: Shape, dtype: DType) -> Value:
    return Value(name, shape, dtype, Role.INPUT)
