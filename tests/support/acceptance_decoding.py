"""Decodes many sequences at once through the real kernels of sampling and acceptance, from a target that is a table.

A pass is compiled as the engine's are, but its logits are looked up: those of the token that a node holds. So the law
of a text is known, and a pass costs next to nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from support.acceptance_drafts import Draft
from support.cpu_pass import MAX_MODEL_LEN, pool

from tspec.core.dtypes import DType
from tspec.core.sampling import EDIT_BIAS, EDIT_MASK, EDIT_PENALTIES
from tspec.core.tree import fill_ancestors
from tspec.graph.builder import GraphBuilder, weight
from tspec.graph.check import check
from tspec.graph.ir import Graph, Role, Value
from tspec.graph.lower import lower
from tspec.graph.plan import Bucket, Plan
from tspec.graph.static_inputs import ANCESTORS
from tspec.kernels.reference import REFERENCES
from tspec.runtime.bind import bind_plan
from tspec.runtime.weights import pack_weights

ROOT, PROMPT_LEN = 0, 3
"""Every text starts behind this token, at this place."""

ROWS = 20_000
"""Sequences of one pass."""


@dataclass(frozen=True)
class Target:
    """A target's table of logits, and how a request samples from it.

    penalties  repetition, presence, frequency
    bias       added to logits by token
    allowed    [V, V]: which token may come after which
    """

    logits: np.ndarray
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalties: tuple[float, float, float] = (1.0, 0.0, 0.0)
    bias: np.ndarray | None = None
    allowed: np.ndarray | None = None

    @property
    def vocab(self) -> int:
        return len(self.logits)

    @property
    def edits(self) -> int:
        flags = EDIT_PENALTIES * (self.penalties != (1.0, 0.0, 0.0))
        return flags | EDIT_BIAS * (self.bias is not None) | EDIT_MASK * (self.allowed is not None)

    def requests(self, rows: int) -> dict[str, np.ndarray]:
        """The static inputs of so many equal requests."""
        numbers = {"temperature": self.temperature, "top_p": self.top_p, "min_p": self.min_p}
        found = {name: np.full(rows, value, np.float32) for name, value in numbers.items()}
        found |= {"top_k": np.full(rows, self.top_k, np.int32), "edits": np.full(rows, self.edits, np.int32)}
        found["penalties"] = np.tile(np.array(self.penalties, np.float32), (rows, 1))
        bias = np.zeros(self.vocab) if self.bias is None else self.bias
        return found | {"bias": np.tile(bias.astype(np.float32), (rows, 1))}

    def masks(self, tokens: np.ndarray) -> np.ndarray:
        """int32 [..., 1]: what may come after each of `tokens`; vocabularies have 31 tokens at most."""
        allowed = np.ones((self.vocab, self.vocab), bool) if self.allowed is None else self.allowed
        return (allowed @ (1 << np.arange(self.vocab)))[tokens].astype(np.int32)[..., None]

    def law(self, length: int) -> np.ndarray:
        """The joint law of `length` tokens by plain decoding, as the references say: [V] * length."""
        law = np.ones(())
        for _ in range(length):
            prefixes = np.ndindex(law.shape)
            law = np.stack([law[prefix] * self._next(prefix) for prefix in prefixes]).reshape(
                *law.shape, self.vocab
            )
        return law

    def _next(self, prefix: tuple[int, ...]) -> np.ndarray:
        last = np.array([[prefix[-1] if prefix else ROOT]], np.int32)
        static = self.requests(1) | {"mask": self.masks(last), "counts": start_counts(1, self.vocab)}
        np.add.at(static["counts"][0], list(prefix), 2)
        given = {name: torch.from_numpy(array) for name, array in static.items()}
        one = torch.ones(1, dtype=torch.int32)
        logits = torch.from_numpy(self.logits[last])
        tables = [given[name] for name in ("edits", "penalties", "counts", "bias", "mask")]
        (edited,) = REFERENCES["edit_logits"](
            {}, logits, *tables, torch.from_numpy(last), one.long()[None], one
        )
        filters = [given[name] for name in ("temperature", "top_k", "top_p", "min_p")]
        threshold, first_tie, _ = REFERENCES["find_kept"]({}, edited, *filters, one)
        scores = edited[0, 0] / given["temperature"][0]
        tokens = torch.arange(self.vocab)
        is_kept = (scores > threshold) | ((scores == threshold) & (tokens >= first_tie))
        return scores.double().masked_fill(~is_kept[0], -torch.inf).softmax(0).numpy()


def start_counts(rows: int, vocab: int) -> np.ndarray:
    """Counts of texts that have only a prompt: the root and the token after it."""
    counts = np.zeros((rows, vocab), np.int32)
    counts[:, [ROOT, 1]] = 1
    return counts


@dataclass
class TablePass:
    """One compiled pass over `rows` candidate trees of one shape, by the CPU backend.

    acceptance        "match" or "ratio"
    is_path_counted   False plants a fault: penalties count only what is committed
    """

    target: Target
    parents: np.ndarray
    acceptance: str
    is_path_counted: bool = True
    rows: int = ROWS

    def __post_init__(self) -> None:
        nodes = len(self.parents)
        plan = lower(self._graph(), Bucket(self.rows, nodes), max_model_len=MAX_MODEL_LEN)
        static = self.static = self.bind(plan, {"table": torch.from_numpy(self.target.logits)}.__getitem__)
        ancestors, depth = np.zeros((1, nodes), np.int64), np.zeros((1, nodes), np.int32)
        fill_ancestors(self.parents[None], np.array([nodes], np.int32), ancestors, depth)
        static["ancestors"][:], static["depth"][:] = ancestors, depth
        if not self.is_path_counted:
            static["uncounted"][:] = 0
        for name, array in self.target.requests(self.rows).items():
            static[name][:] = array

    def bind(self, plan: Plan, load: Callable[[str], torch.Tensor]) -> Mapping[str, np.ndarray]:
        """Give the pass its memory; returns its static inputs."""
        self.weights = pack_weights(plan, load, {})
        self.bound = bind_plan(plan, self.weights, {}, num_threads=1)
        return self.bound.inputs

    def launch(self) -> Mapping[str, np.ndarray]:
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
        else:
            verdict = build.accept_ratio(node_tokens, edited, kept, vocab, None)
        graph = build.build([*verdict, node_tokens])
        return graph if self.is_path_counted else check(_uncounted(graph))

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs for as many sequences as `inputs` have; valid until the next run."""
        count = len(inputs["num_nodes"])
        self.static["num_nodes"][count:] = 0
        for name, array in inputs.items():
            if name in self.static:
                self.static[name][:count] = array
        return {name: array[:count].copy() for name, array in self.launch().items()}


def _uncounted(graph: Graph) -> Graph:
    """The same graph, in which edits read ancestors of their own."""
    other = Value("uncounted", ANCESTORS.shape, ANCESTORS.dtype, Role.INPUT)
    ops = tuple(
        replace(op, inputs=tuple(other if each == ANCESTORS else each for each in op.inputs))
        if op.kind == "edit_logits"
        else op
        for op in graph.ops
    )
    return replace(graph, ops=ops, inputs=(*graph.inputs, other))


@dataclass
class Decoder:
    """Decodes texts of a few tokens each, `rows` at a time.

    acceptance        "match" or "ratio"
    is_path_counted   False plants a fault: see TablePass
    is_residual_used  False plants a fault: after a refusal the target's own sample comes out
    make_pass         TablePass, or the same on a device
    """

    target: Target
    draft: Draft
    acceptance: str = "ratio"
    is_path_counted: bool = True
    is_residual_used: bool = True
    make_pass: Callable[..., TablePass] = TablePass
    rows: int = ROWS

    def decode(self, count: int, length: int, seed: int) -> np.ndarray:
        """int32 [count, length], a text a row, each with a seed of its own."""
        one_pass = self.make_pass(
            self.target, self.draft.parents, self.acceptance, self.is_path_counted, rows=self.rows
        )
        seeds = np.random.default_rng(seed).integers(0, 1 << 63, count)
        starts = range(0, count, self.rows)
        return np.concatenate(
            [self._decode(one_pass, seeds[start : start + self.rows], length) for start in starts]
        )

    def _decode(self, one_pass: TablePass, seeds: np.ndarray, length: int) -> np.ndarray:
        """Rounds of propose and verify, until every text is long enough."""
        count = len(seeds)
        texts = np.full((count, length + len(self.draft.parents) + 1), ROOT, np.int32)
        lengths, counts = np.zeros(count, np.int64), start_counts(count, self.target.vocab)
        while len(live := np.flatnonzero(lengths < length)):
            prefix_len = (PROMPT_LEN + lengths[live]).astype(np.int32)
            roots = texts[live, lengths[live]]
            drawn = self.draft.propose(roots, seeds[live], prefix_len)
            inputs = {"tokens": drawn.tokens, "num_nodes": drawn.num_nodes, "is_sampled": drawn.is_sampled}
            inputs |= {"draft_logprobs": drawn.draft_logprobs, "prefix_len": prefix_len, "seed": seeds[live]}
            inputs |= {"counts": counts[live], "mask": self.target.masks(drawn.tokens)}
            found = one_pass.run(inputs)
            out_tokens, num_out = self._emitted(found, drawn.is_sampled), found["num_out"]
            for place in range(int(num_out.max())):
                there = live[num_out > place]
                tokens = out_tokens[num_out > place, place]
                texts[there, lengths[there] + place + 1] = tokens
                np.add.at(counts, (there, tokens), 2)
            lengths[live] += num_out
        return texts[:, 1 : length + 1]

    def _emitted(self, found: dict[str, np.ndarray], is_sampled: np.ndarray) -> np.ndarray:
        if self.is_residual_used:
            return found["out_tokens"]
        out_tokens, rows, num_out = found["out_tokens"].copy(), np.arange(len(is_sampled)), found["num_out"]
        last = np.where(num_out > 1, found["path"][rows, num_out - 2], 0)
        is_refused = is_sampled[rows, last] != 0
        bonus = np.where(is_refused, found["node_tokens"][rows, last], out_tokens[rows, num_out - 1])
        out_tokens[rows, num_out - 1] = bonus
        return out_tokens
