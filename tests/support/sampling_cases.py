"""Cases of what happens to logits once they are written: edits, what is kept, samples, log-probabilities."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from support.cpu_pass import Case
from support.kernel_case import ENDING, RAGGED, KernelCase, Maker, chains, random_trees

from tspec.core.dtypes import DType
from tspec.core.shapes import mask_words
from tspec.core.tree import CandidateTrees
from tspec.graph.builder import GraphBuilder
from tspec.graph.ir import Role, Value
from tspec.graph.static_inputs import STATIC_INPUTS
from tspec.kernels.reference.sampling import is_kept

I32 = DType.INT32

FILTERS = (
    (0.0, 5, 0.5, 0.1),
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.3, -1, 0.83, 0.0),
    (0.8, 40, 0.9, 0.02),
    (1.0, 0, 1e-6, 0.0),
    (1.3, 0, 0.9999, 0.0),
    (1.0, 1 << 30, 1.0, 0.07),
    (2.0, 0, 1.0, 1.0),
    (50.0, 3, 0.6, 0.5),
    (0.5, 90, 0.77, 0.0),
)
"""Temperature, top_k, top_p, min_p: greedy, all kept, each alone, all at once; no limit falls between equal tokens."""


def hard_logits(make: Maker, num_rows: int, vocab: int) -> torch.Tensor:
    """Rows of every kind, in turns: apart, equal by groups, all equal, huge, with NaN, with -inf, nothing, zeros."""
    table = make.normal(num_rows, vocab) * 3
    table[1::9] = (table[1::9] / 2).round()
    table[2::9] = table[2::9, :1]
    table[3::9, vocab // 2] = 1e30
    table[4::9, ::2] = torch.nan
    table[5::9, : vocab // 2] = -torch.inf
    table[6::9] = torch.where(table[6::9] > 0, torch.nan, -torch.inf)
    table[7::9] = torch.where(table[7::9] > 2, 0.0, -0.0)
    table[8::9] *= 1e-3
    return table


def start(make: Maker, vocab: int, trees: CandidateTrees, last: bool) -> tuple[GraphBuilder, Value]:
    """A graph that begins with a row of hard logits a node: that of its token. With `last`, cut to the last node."""
    build = GraphBuilder("case")
    num_rows = int(trees.tokens.max()) + 1
    source, logits = make.rows("all_logits" if last else "logits", num_rows, vocab)
    make.tensors[f"{logits.name}.table"] = hard_logits(make, num_rows, vocab)
    build.ops.append(source)
    return build, build.last_row("logits", logits) if last else logits


def finish(
    make: Maker, build: GraphBuilder, outputs: Sequence[Value], inputs: dict[str, np.ndarray], **more: Any
) -> Case:
    """The case of what was built. `more` are its caches, and the width of a level."""
    graph = build.build(outputs)
    inputs = {value.name: inputs[value.name] for value in graph.inputs}
    settings = {"caches": {}, "extra_inputs": graph.inputs[len(STATIC_INPUTS) :]} | more
    return Case(graph.ops, graph.outputs, make.tensors, inputs, **settings)


def filters(make: Maker, trees: CandidateTrees, first: int) -> dict[str, np.ndarray]:
    """What `find_kept` and `sample` read, of FILTERS from `first` on."""
    rows = len(trees.num_nodes)
    temperature, top_k, top_p, min_p = zip(
        *(FILTERS[(first + row) % len(FILTERS)] for row in range(rows)), strict=True
    )
    asked = {
        "top_k": np.array(top_k, np.int32),
        "top_p": np.array(top_p, np.float32),
        "min_p": np.array(min_p, np.float32),
    }
    return make.inputs(trees, [70 * row for row in range(rows)]) | make.draws(temperature) | asked


def sample(make: Maker, vocab: int, counts: tuple[int, ...], first: int, last: bool = False) -> Case:
    """Without a filter: of FILTERS the temperature alone counts."""
    trees = chains(counts)
    build, logits = start(make, vocab, trees, last)
    out = build.sample("token", logits)
    return finish(make, build, [out], filters(make, trees, first))


def find_kept(
    make: Maker, vocab: int, counts: tuple[int, ...], first: int, last: bool = False, sampled: bool = False
) -> Case:
    """The logits are put out as well, so that `kept_tokens` can tell what is kept."""
    trees = chains(counts)
    build, logits = start(make, vocab, trees, last)
    kept = build.find_kept(logits)
    outputs = [build.sample("token", logits, *kept[:2])] if sampled else [*kept, logits]
    return finish(make, build, outputs, filters(make, trees, first))


def edit_logits(make: Maker, vocab: int, counts: tuple[int, ...], last: bool = False) -> Case:
    """Every mixture of edits; trees of few tokens, so that paths have the same one more than once."""
    random = np.random.default_rng(make.seed)
    parents = random_trees(counts, make.seed).parents
    tokens = random.integers(0, min(vocab, 9), parents.shape).astype(np.int32)
    trees = CandidateTrees(tokens, parents, np.array(counts, np.int32))
    build, logits = start(make, vocab, trees, last)
    out = build.edit_logits("edited", logits)
    rows, width = parents.shape
    mask_shape = (rows, 1 if last else width, mask_words(vocab))
    inputs = make.inputs(trees) | {
        "edits": np.array([(7, 2, 0, 5, 6, 3, 4, 1)[(row + make.seed) % 8] for row in range(rows)], np.int32),
        "penalties": np.array([(1.3, 0.4, -0.7), (0.8, -1.5, 0.25)] * rows, np.float32)[:rows],
        "counts": random.choice([0, 0, 1, 2, 3, 6], (rows, vocab)).astype(np.int32),
        "bias": random.normal(size=(rows, vocab)).astype(np.float32),
        "mask": random.integers(-(1 << 31), 1 << 31, mask_shape).astype(np.int32),
    }
    return finish(make, build, [out], inputs)


def token_logprobs(
    make: Maker, vocab: int, counts: tuple[int, ...], most: int = 5, last: bool = False, path: bool = False
) -> Case:
    """Tokens chosen after each node, or along random paths; some were not asked for, some could not be chosen."""
    trees, random = chains(counts), np.random.default_rng(make.seed)
    build, logits = start(make, vocab, trees, last)
    rows, width = trees.tokens.shape
    inputs = make.inputs(trees) | {
        "chosen": random.integers(-1, vocab, (rows, 1 if last else width)).astype(np.int32),
        "num_logprobs": np.array([(most, 0, -1, 2)[(row + make.seed) % 4] for row in range(rows)], np.int32),
    }
    chosen = Value("chosen", logits.shape[:-1], I32, Role.INPUT)
    where: tuple[Value, ...] = ()
    if path:
        where = (Value("num_out", ("B",), I32, Role.INPUT), Value("path", ("B", "T"), I32, Role.INPUT))
        inputs |= random_paths(random, counts, width)
    outputs = build.token_logprobs(logits, chosen, most, *where)
    return finish(make, build, outputs, inputs)


def random_paths(random: np.random.Generator, counts: Sequence[int], width: int) -> dict[str, np.ndarray]:
    """Some nodes of each row, in order."""
    path, num_out = np.full((len(counts), width), -1, np.int32), np.zeros(len(counts), np.int32)
    for row, count in enumerate(counts):
        nodes = [node for node in range(1, count) if random.integers(2)]
        path[row, : len(nodes)] = nodes
        num_out[row] = len(nodes) + 1 if count else 0
    return {"num_out": num_out, "path": path}


def kept_tokens(case: Case, outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Which tokens are kept in each live row of a case of `find_kept`; bool [rows, V]."""
    counts = np.minimum(case.inputs["num_nodes"], outputs["threshold"].shape[1])
    places = [(row, node) for row, count in enumerate(counts.tolist()) for node in range(count)]
    kept = []
    for (row, node), logits in zip(places, outputs["logits"], strict=True):
        temperature = float(case.inputs["temperature"][row]) or 1.0
        scores = logits.float() / np.float32(temperature)
        limits = float(outputs["threshold"][row, node]), int(outputs["first_tie"][row, node])
        kept.append(is_kept(scores, *limits))
    return torch.stack(kept)


def _case(kind: str, label: str, make: Callable[..., Case], **settings: Any) -> KernelCase:
    return KernelCase(kind, DType.FLOAT32, label, partial(make, **settings))


SAMPLING_CASES = [
    *(
        _case(kind, f"{label}{vocab}-{counts}{'-last' * last}", make, vocab=vocab, counts=counts, last=last)
        for kind, label, make in (
            ("sample", "", partial(sample, first=1)),
            ("sample", "with greedy-", partial(sample, first=11)),
            ("sample", "kept-", partial(find_kept, first=9, sampled=True)),
            ("find_kept", "", partial(find_kept, first=1)),
            ("edit_logits", "", edit_logits),
            ("token_logprobs", "", token_logprobs),
        )
        for vocab in (1, 16, 97, 128, 131)
        for counts in ((17,), RAGGED, ENDING)
        for last in (False, True)
    ),
    *(
        _case(
            kind,
            f"{vocab}-filter {first}",
            find_kept,
            vocab=vocab,
            counts=(9,),
            first=first,
            sampled=kind == "sample",
        )
        for kind in ("find_kept", "sample")
        for vocab in (97, 131, 1000)
        for first in range(len(FILTERS))
    ),
    *(
        _case(
            "token_logprobs", f"path-{vocab}-{counts}", token_logprobs, vocab=vocab, counts=counts, path=True
        )
        for vocab in (3, 97, 131)
        for counts in ((17,), RAGGED, ENDING)
    ),
    *(
        _case("find_kept", f"large-{first}", find_kept, vocab=49152, counts=(2,), first=first)
        for first in (4, 5, 11)
    ),
    _case("sample", "large", sample, vocab=49152, counts=(3,), first=1),
    _case("token_logprobs", "large", token_logprobs, vocab=49152, counts=(3,), most=20),
]
