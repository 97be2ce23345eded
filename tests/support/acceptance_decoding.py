"""Decodes many sequences at once through the real kernels of sampling and acceptance, from a target that is a table.

A pass is compiled as the engine's are, but its logits are looked up: those of the token that a node holds. So the law
of a text is known, and a pass costs next to nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from support.acceptance_drafts import Draft, Proposed
from support.acceptance_target import PROMPT_LEN, ROOT, Target, start_counts
from support.cpu_pass import MAX_MODEL_LEN, pool

from tspec.core.dtypes import DType
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.check import check
from tspec.graph.ir import Graph, Role, Value
from tspec.graph.lower import lower
from tspec.graph.plan import Bucket, Plan
from tspec.graph.static_inputs import ANCESTORS
from tspec.models.build_graph import draft_index
from tspec.runtime.bind import bind_plan
from tspec.runtime.weights import pack_weights

ROWS = 20_000
"""Sequences of one pass."""

Arrays = Mapping[str, np.ndarray]
Load = Callable[[str], torch.Tensor]


@dataclass
class TablePass:
    """One compiled pass over `rows` candidate trees, by the CPU backend.

    num_nodes         of the largest tree
    acceptance        "match" or "ratio"
    known             the target's numbers of the draft's tokens, where it knows fewer
    is_path_counted   False plants a fault: penalties count only what is committed
    """

    target: Target
    num_nodes: int
    acceptance: str
    known: Sequence[int] | None = None
    is_path_counted: bool = True
    rows: int = ROWS

    def __post_init__(self) -> None:
        plan = lower(self._graph(), Bucket(self.rows, self.num_nodes), max_model_len=MAX_MODEL_LEN)
        index = np.full(self.target.vocab, -1, np.int32)
        if self.known is not None:
            index[list(self.known)] = np.arange(len(self.known))
        table = torch.from_numpy(self.target.logits)
        self.static = self.bind(plan, {"table": table}.__getitem__, {"draft.index": index})
        if not self.is_path_counted:
            self.static["uncounted"][:] = 0
        self.run(self.target.requests(self.rows))

    def bind(self, plan: Plan, load: Load, tables: Arrays) -> Arrays:
        """Give the pass its memory; returns its static inputs."""
        self.weights = pack_weights(plan, load, tables)
        self.bound = bind_plan(plan, self.weights, {}, num_threads=1)
        return self.bound.inputs

    def launch(self) -> Arrays:
        """Run on what the static inputs are; returns all outputs."""
        pool(1).run(self.bound.launches)
        return self.bound.outputs

    def _graph(self) -> Graph:
        vocab = self.target.vocab
        build = GraphBuilder("table")
        logits = build.embed("logits", weight("table", (vocab, vocab), DType.FLOAT32), DType.FLOAT32)
        edited = build.edit_logits("edited", logits)
        kept = build.find_kept(edited)
        node_tokens = build.sample("node_tokens", edited, *kept[:2])
        if self.acceptance == "match":
            verdict = build.accept_match(node_tokens)
        elif self.known is None:
            verdict = build.accept_ratio(node_tokens, edited, kept, vocab, None)
        else:
            verdict = build.accept_ratio(node_tokens, edited, kept, len(self.known), draft_index(vocab))
        graph = build.build([*verdict, node_tokens])
        return graph if self.is_path_counted else check(_uncounted(graph))

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs for as many sequences as `inputs` have; what they leave out is as in the run before."""
        count = len(next(iter(inputs.values())))
        self.static["num_nodes"][:] = 0
        for name, array in inputs.items():
            if name in self.static:
                self.static[name][:count] = array
        return {name: array[:count].copy() for name, array in self.launch().items()}


def _uncounted(graph: Graph) -> Graph:
    """The same graph, in which edits read ancestors of their own, all of them none."""
    other = Value("uncounted", ANCESTORS.shape, ANCESTORS.dtype, Role.INPUT)
    ops = tuple(
        replace(op, inputs=tuple(other if each == ANCESTORS else each for each in op.inputs))
        if op.kind == "edit_logits"
        else op
        for op in graph.ops
    )
    return replace(graph, ops=ops, inputs=(*graph.inputs, other))


@dataclass(frozen=True)
class Round:
    """One verify pass: its candidates, what else it was given, and what it said."""

    one_pass: TablePass
    drawn: Proposed
    inputs: Arrays
    found: Arrays

    @property
    def last(self) -> np.ndarray:
        """The node after which the bonus token comes, int [n]."""
        num_out = self.found["num_out"]
        before = self.found["path"][np.arange(len(num_out)), np.maximum(num_out - 2, 0)]
        return np.where(num_out > 1, before, 0)

    @property
    def bonus(self) -> np.ndarray:
        """int32 [n]"""
        num_out = self.found["num_out"]
        return self.found["out_tokens"][np.arange(len(num_out)), num_out - 1]


Fault = Callable[[Round], np.ndarray]
"""A fault of acceptance: the bonus tokens int32 [n] that come out instead."""


@dataclass
class Decoder:
    """Decodes texts of a few tokens each, `rows` at a time.

    acceptance        "match" or "ratio"
    is_path_counted   False plants a fault: see TablePass
    fault             another one
    make_pass         TablePass, or the same on a device
    """

    target: Target
    draft: Draft
    acceptance: str = "ratio"
    is_path_counted: bool = True
    fault: Fault | None = None
    make_pass: Callable[..., TablePass] = TablePass
    rows: int = ROWS

    def decode(self, count: int, length: int, seed: int) -> np.ndarray:
        """int32 [count, length], a text a row, each with a seed of its own."""
        num_nodes, rows = len(self.draft.parents), min(count, self.rows)
        one_pass = self.make_pass(
            self.target, num_nodes, self.acceptance, self.draft.known, self.is_path_counted, rows
        )
        seeds = np.random.default_rng(seed).integers(0, 1 << 63, count)
        starts = range(0, count, self.rows)
        return np.concatenate(
            [self._decode(one_pass, seeds[start : start + self.rows], length) for start in starts]
        )

    def _decode(self, one_pass: TablePass, seeds: np.ndarray, length: int) -> np.ndarray:
        """Rounds of propose and verify, until every text is long enough."""
        count = len(seeds)
        texts = np.full((count, length + len(self.draft.widths) + 1), ROOT, np.int32)
        lengths, counts = np.zeros(count, np.int64), start_counts(count, self.target.vocab)
        while len(live := np.flatnonzero(lengths < length)):
            prefix_len = (PROMPT_LEN + lengths[live]).astype(np.int32)
            roots = texts[live, lengths[live]]
            drawn = self.draft.propose(roots, seeds[live], prefix_len, deepest=length - lengths[live])
            inputs = {"tokens": drawn.tokens, "num_nodes": drawn.num_nodes, "is_sampled": drawn.is_sampled}
            inputs |= dict(zip(("ancestors", "depth"), _ancestors(drawn.parents), strict=True))
            inputs |= {"draft_logprobs": drawn.draft_logprobs, "prefix_len": prefix_len, "seed": seeds[live]}
            inputs |= {"counts": counts[live], "mask": self.target.masks(drawn.tokens)}
            verify = Round(one_pass, drawn, inputs, one_pass.run(inputs))
            num_out, out_tokens = verify.found["num_out"], verify.found["out_tokens"]
            if self.fault is not None:
                out_tokens[np.arange(len(live)), num_out - 1] = self.fault(verify)
            for place in range(int(num_out.max())):
                is_out = num_out > place
                there, tokens = live[is_out], out_tokens[is_out, place]
                texts[there, lengths[there] + place + 1] = tokens
                counts[there, tokens] += 2
            lengths[live] += num_out
        return texts[:, 1 : length + 1]


def _ancestors(parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(ancestors int64, depth int32) [n, T] of trees that are padded with nodes of any parent, such as the root."""
    rows = np.arange(len(parents))
    ancestors, depth = np.ones(parents.shape, np.int64), np.zeros(parents.shape, np.int32)
    for node in range(1, parents.shape[1]):
        ancestors[:, node] = ancestors[rows, parents[:, node]] | 1 << node
        depth[:, node] = depth[rows, parents[:, node]] + 1
    return ancestors, depth
