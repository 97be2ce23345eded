"""Cases of a draft's own kernels: rows of two inputs, features, likeliest and drawn tokens, levels of a tree."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from support.cpu_pass import Case
from support.kernel_case import ENDING, RAGGED, KernelCase, Maker, chains, random_trees
from support.sampling_cases import finish, hard_logits, random_paths, start

from tspec.core.dtypes import DType
from tspec.core.noise import draft_stream
from tspec.core.sampling import NO_TOKEN
from tspec.core.shapes import BLOCK_TOKENS
from tspec.core.tree import CandidateTrees
from tspec.graph.builder import GraphBuilder, Nodes
from tspec.graph.ir import Role, Value
from tspec.graph.static_inputs import LEVEL_NODES

F32, I32, I64 = DType.FLOAT32, DType.INT32, DType.INT64

GAPS = (0, 3, 0, 1)
"""Sequences without a node before, between and after those that have some."""
WIDTHS = (1, 3, 10)
VOCABS = (1, 16, 97, 128, 131)


def level_nodes(counts: Sequence[int], width: int) -> np.ndarray:
    """Live nodes of each sequence in a level of `width`."""
    return np.minimum(np.array(counts, np.int32), width)


def level_rows(
    make: Maker, name: str, counts: Sequence[int], width: int, cols: int
) -> tuple[GraphBuilder, Value]:
    """A graph that begins with a row a node of a level: that of its token, which numbers all nodes."""
    build = GraphBuilder("case")
    tokens = Value("next_tokens", ("B", "W"), I32, Role.INPUT)
    build.nodes = Nodes(tokens, dim="W", num_nodes=LEVEL_NODES)
    return build, build.embed(name, make.weight(f"{name}.table", len(counts) * width, cols))


def level_inputs(make: Maker, counts: Sequence[int], width: int) -> dict[str, np.ndarray]:
    """Static inputs for `level_rows`; each sequence that has a level has a node in the pass."""
    rows = len(counts)
    trees = chains([max(count, 1) for count in counts])
    tokens = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    return make.inputs(trees) | {"next_tokens": tokens, "level_nodes": level_nodes(counts, width)}


def rms_norm(make: Maker, cols: int, counts: tuple[int, ...], last: bool = False) -> Case:
    trees = chains(counts)
    build, x = pass_rows(make, "x", trees, cols, last)
    out = build.rms_norm("normed", x, make.weight("norm", cols), 1e-5)
    return finish(make, build, [out], make.inputs(trees))


def concat(make: Maker, cols: int, more_cols: int, counts: tuple[int, ...]) -> Case:
    trees = chains(counts)
    build, a = pass_rows(make, "a", trees, cols)
    source, b = make.rows("b", trees.tokens.size, more_cols)
    build.ops.append(source)
    return finish(make, build, [build.concat("both", a, b)], make.inputs(trees))


def silu_add(make: Maker, cols: int, counts: tuple[int, ...]) -> Case:
    """Numbers of every size: exp overflows for the lowest, and vanishes for the highest."""
    trees = chains(counts)
    build, x = pass_rows(make, "x", trees, cols)
    make.tensors["x.table"] *= torch.logspace(-3, 2, trees.tokens.size)[:, None]
    source, residual = make.rows("residual", trees.tokens.size, cols)
    build.ops.append(source)
    return finish(make, build, [build.silu_add("out", x, residual)], make.inputs(trees))


def pass_rows(
    make: Maker, name: str, trees: CandidateTrees, cols: int, last: bool = False
) -> tuple[GraphBuilder, Value]:
    """A graph that begins with a row a node of the pass."""
    build = GraphBuilder("case")
    source, x = make.rows(f"all_{name}" if last else name, trees.tokens.size, cols)
    build.ops.append(source)
    return build, build.last_row(name, x) if last else x


def keep_features(
    make: Maker,
    cols: int,
    column: int,
    total: int,
    counts: tuple[int, ...],
    prefixes: Sequence[int],
    path: bool,
) -> Case:
    """Everything is kept but what is written: features start as random numbers."""
    trees = chains(counts)
    build, x = pass_rows(make, "x", trees, cols)
    inputs = make.inputs(trees, prefixes)
    where: tuple[Value, ...] = ()
    if path:
        where = (Value("path", ("B", "T"), I32, Role.INPUT), Value("num_out", ("B",), I32, Role.INPUT))
        inputs |= random_paths(np.random.default_rng(make.seed), counts, trees.tokens.shape[1])
    build.keep_features(x, column, total, *where)
    features = make.normal(inputs["block_table"].size, BLOCK_TOKENS, total)
    return finish(make, build, [], inputs, caches={"features": features})


def read_features(
    make: Maker, cols: int, column: int, total: int, trees: CandidateTrees, prefixes: Sequence[int]
) -> Case:
    """Positions that no node stands behind hold NaN."""
    build, inputs = GraphBuilder("case"), make.inputs(trees, prefixes)
    out = build.read_features("x", column, cols, total)
    features = torch.full((inputs["block_table"].size, BLOCK_TOKENS, total), torch.nan)
    for row, count in enumerate(trees.num_nodes.tolist()):
        for node in range(count):
            position = max(prefixes[row] + int(inputs["depth"][row, node]) - 1, 0)
            block = inputs["block_table"][row, position // BLOCK_TOKENS]
            features[block, position % BLOCK_TOKENS] = make.normal(total)
    return finish(make, build, [out], inputs, caches={"features": features})


def top_tokens(
    make: Maker,
    vocab: int,
    counts: tuple[int, ...],
    most: int,
    width: int = 0,
    last: bool = False,
    ids: bool = False,
) -> Case:
    """Rows of the nodes of a pass, of the last of them, or of a level of `width`."""
    build, logits, inputs = logits_rows(make, vocab, counts, width, last)
    outs = build.top_tokens("draft", logits, most, target_tokens(make, vocab) if ids else None)
    return finish(make, build, outs, inputs, width=width or 1)


def draw_draft(
    make: Maker, vocab: int, counts: tuple[int, ...], width: int = 0, last: bool = False, ids: bool = False
) -> Case:
    """Greedy sequences and others, at every position of a seed's stream."""
    build, logits, inputs = logits_rows(make, vocab, counts, width, last)
    table = target_tokens(make, vocab) if ids else None
    outs = build.draw_draft("draft", logits, table, stream=draft_stream(2), offset=3)
    temperature = [(1.0, 0.0, 0.6, 1.7)[(row + make.seed) % 4] for row in range(len(counts))]
    places = {"draft_prefix": 50 * np.arange(len(counts), dtype=np.int32)}
    return finish(make, build, outs, inputs | make.draws(temperature) | places, width=width or 1)


def logits_rows(
    make: Maker, vocab: int, counts: tuple[int, ...], width: int, last: bool
) -> tuple[GraphBuilder, Value, dict[str, np.ndarray]]:
    """Rows of hard logits, and the static inputs that make them."""
    if width:
        build, logits = level_rows(make, "logits", counts, width, vocab)
        make.tensors["logits.table"] = hard_logits(make, len(counts) * width, vocab)
        return build, logits, level_inputs(make, counts, width)
    trees = chains(counts)
    build, logits = start(make, vocab, trees, last)
    return build, logits, make.inputs(trees)


def target_tokens(make: Maker, vocab: int) -> Value:
    """A table from a draft's tokens to those of a target that has four times as many."""
    ids = np.random.default_rng(make.seed).choice(4 * vocab, vocab, replace=False).astype(np.int32)
    make.tensors["token_ids"] = torch.from_numpy(ids)
    return Value("token_ids", (vocab,), I32, Role.WEIGHT)


def expand_tree(
    make: Maker,
    width: int,
    most: int,
    counts: tuple[int, ...],
    level: int = 0,
    ties: bool = False,
    nans: bool = False,
) -> Case:
    """Candidates of the root at level 0, later of a level; some are missing, with `ties` many are equal.

    nans  a third of all log-probabilities, and the score of the first row, are no numbers
    """
    rows, random = len(counts), np.random.default_rng(make.seed)
    live = level_nodes(counts, width)
    num_rows = width if level else 1
    dim, build = "W" if level else 1, GraphBuilder("case")
    tokens = random.integers(0, 50, (rows, num_rows, most)).astype(np.int32)
    logprobs = np.sort(-random.exponential(2.0, tokens.shape).astype(np.float32))[..., ::-1].copy()
    logprobs = np.round(logprobs) if ties else logprobs
    if nans:
        logprobs[random.random(logprobs.shape) < 1 / 3] = np.nan
    for row in range(rows):  # of the last candidates of some rows there are none
        at = random.integers(0, num_rows)
        gone = random.integers(0, most + 1)
        tokens[row, at, most - gone :], logprobs[row, at, most - gone :] = NO_TOKEN, -np.inf
    inputs = make.inputs(chains([max(count, 1) for count in counts]))
    inputs |= {"level_nodes": live, "top": tokens, "top_logprobs": logprobs}
    values = [
        Value("top", ("B", dim, most), I32, Role.INPUT),
        Value("top_logprobs", ("B", dim, most), F32, Role.INPUT),
    ]
    scores = None
    if level:
        scores = Value("row_scores", ("B", "W"), F32, Role.INPUT)
        above = Value("row_ancestors", ("B", "W"), I64, Role.INPUT)
        build.nodes = Nodes(ancestors=above, num_nodes=LEVEL_NODES, dim="W", first_node=(level - 1) * width)
        table = -random.exponential(1.0, (rows, width)).astype(np.float32)
        if nans:
            table[0, 0] = np.nan
        inputs["row_scores"] = np.round(table) if ties else table
        inputs["row_ancestors"] = random_masks(random, rows, width, level)
    outs = build.expand_tree("draft", *values, scores, width)
    return finish(make, build, outs, inputs, width=width)


def random_masks(random: np.random.Generator, rows: int, width: int, level: int) -> np.ndarray:
    """Ancestors of the nodes of level `level - 1`: one node of each level before it, and themselves."""
    masks = np.zeros((rows, width), np.int64)
    for above in range(level - 1):
        masks |= np.int64(1) << (above * width + random.integers(0, width, masks.shape))
    return masks | np.int64(1) << ((level - 1) * width + np.arange(width, dtype=np.int64))


def parent_rows(make: Maker, cols: int, width: int, most: int, counts: tuple[int, ...], root: bool) -> Case:
    """Below the last node of each sequence, or below nodes of a level."""
    random = np.random.default_rng(make.seed)
    if root:
        trees = chains([max(count, 1) for count in counts])
        build, x = pass_rows(make, "x", trees, cols, last=True)
        inputs = make.inputs(trees) | {"level_nodes": level_nodes(counts, width)}
    else:
        build, x = level_rows(make, "x", counts, width, cols)
        inputs = level_inputs(make, counts, width)
    live = np.maximum(inputs["level_nodes"], 1)[:, None] * most if not root else most
    inputs["next_from"] = random.integers(0, live, (len(counts), width)).astype(np.int32)
    source = Value("next_from", ("B", "W"), I32, Role.INPUT)
    return finish(make, build, [build.parent_rows("out", x, source, most)], inputs, width=width)


def _case(kind: str, label: str, make: Callable[..., Case], **settings: Any) -> KernelCase:
    return KernelCase(kind, F32, label, partial(make, **settings))


POSITIONS = ((1, 63, 64, 65), (255, 256, 128, 1))
"""Prefixes around the borders of blocks, for the sequences of RAGGED."""

ROW_KERNELS = [
    *(
        _case("rms_norm", f"{cols}-{counts}{'-last' * last}", rms_norm, cols=cols, counts=counts, last=last)
        for cols in (2, 16, 50, 576)
        for counts in (RAGGED, ENDING)
        for last in (False, True)
    ),
    *(
        _case("concat", f"{cols}+{more}-{counts}", concat, cols=cols, more_cols=more, counts=counts)
        for cols, more in ((1, 1), (16, 24), (17, 2), (64, 128))
        for counts in (RAGGED, ENDING)
    ),
    *(
        _case("silu_add", f"{cols}-{counts}", silu_add, cols=cols, counts=counts)
        for cols in (1, 16, 50)
        for counts in (RAGGED, ENDING)
    ),
    *(
        _case(
            "keep_features",
            f"{cols} of {total} at {column}-{prefixes[0]}{'-path' * path}",
            keep_features,
            cols=cols,
            column=column,
            total=total,
            counts=RAGGED,
            prefixes=prefixes,
            path=path,
        )
        for cols, column, total in ((24, 0, 24), (16, 16, 48), (3, 5, 9))
        for prefixes in ((0, 60, 63, 320), *POSITIONS)
        for path in (False, True)
    ),
    *(
        _case(
            "read_features",
            f"{cols} of {total} at {column}-{prefixes[0]}-{'trees' if is_tree else 'chains'}",
            read_features,
            cols=cols,
            column=column,
            total=total,
            trees=random_trees(RAGGED, column) if is_tree else chains(RAGGED),
            prefixes=prefixes,
        )
        for cols, column, total in ((24, 0, 24), (16, 16, 48), (3, 5, 9))
        for prefixes in ((0, 60, 63, 320), *POSITIONS)
        for is_tree in (False, True)
    ),
    *(
        _case(
            "parent_rows",
            f"{cols}-{width}x{most}-{counts}{'-root' * root}",
            parent_rows,
            cols=cols,
            width=width,
            most=most,
            counts=counts,
            root=root,
        )
        for cols, width, most in ((24, 1, 1), (50, 3, 3), (16, 10, 4))
        for counts in ((12,), RAGGED, ENDING, GAPS)
        for root in (False, True)
    ),
]

TREE_KERNELS = [
    *(
        _case(
            "expand_tree",
            f"{width}x{most}-{counts}-level {level}{'-ties' * ties}",
            expand_tree,
            width=width,
            most=most,
            counts=counts,
            level=level,
            ties=ties,
        )
        for width, most in ((1, 1), (1, 4), (3, 3), (3, 10), (10, 10), (10, 2))
        for counts in ((12,), RAGGED, GAPS)
        for level in (0, 1, 4)
        for ties in (False, True)
    ),
    *(
        _case(
            "expand_tree",
            f"3x4-{RAGGED}-level {level}-nans",
            expand_tree,
            width=3,
            most=4,
            counts=RAGGED,
            level=level,
            nans=True,
        )
        for level in (0, 1)
    ),
    *(
        _case(
            kind,
            f"{label}{vocab}-{counts}{f'-level of {width}' * bool(width)}{'-last' * last}",
            make,
            vocab=vocab,
            counts=counts,
            width=width,
            last=last,
            ids=vocab % 2 == 1,
        )
        for kind, label, make in (
            ("top_tokens", "1 of ", partial(top_tokens, most=1)),
            ("top_tokens", "10 of ", partial(top_tokens, most=10)),
            ("draw_draft", "", draw_draft),
        )
        for vocab in (*VOCABS, 1009)
        for counts, width, last in (
            (RAGGED, 0, False),
            (RAGGED, 0, True),
            (ENDING, 0, True),
            *((counts, width, False) for width in WIDTHS for counts in ((12,), GAPS)),
        )
    ),
    *(
        _case("top_tokens", f"{most} of many", top_tokens, vocab=49152, counts=(3,), most=most, width=3)
        for most in (1, 10)
    ),
    _case("draw_draft", "of many", draw_draft, vocab=49152, counts=(3, 2), width=3, ids=True),
]

DRAFT_CASES = [*ROW_KERNELS, *TREE_KERNELS]
