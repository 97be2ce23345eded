"""From a proposer's model to the graph of a whole round: take in what was committed, then grow a tree level by level.

One graph holds all levels, so that a backend runs them as one program. A level has W nodes a sequence; its keys and
values lie behind the committed ones, and the next round writes over them.

Source    tree by cumulative confidence: EAGLE-2, arXiv:2406.16858, section 4
"""

from collections.abc import Callable
from dataclasses import dataclass

from tspec.core.dtypes import DType
from tspec.core.noise import TARGET, draft_stream
from tspec.graph.builder import GraphBuilder, Nodes
from tspec.graph.ir import Graph, Role, Value
from tspec.graph.static_inputs import DRAFT_PREFIX, LEVEL_NODES

DRAWS = ("top", "match", "ratio")
"""How a level's candidates are chosen: the likeliest; drawn with the target's noise; drawn with the draft's own."""


@dataclass(frozen=True, slots=True)
class DraftParts:
    """What a proposer's model does at each step; `build_draft` puts the steps together.

    first        (builder) -> rows of the nodes of the pass, which are committed tokens
    level        (builder, tokens, parents) -> rows of a level: its tokens, and the rows they hang on
    logits       (builder, name, rows) -> float32 logits over the draft's own ids
    fed_back     (builder, name, rows) -> what the next level reads of its parents; None where it reads nothing
    num_logits   the draft's own vocabulary
    maps_tokens  whether its ids are others than the target's
    first_slot   slots of its KV cache that stay empty
    """

    name: str
    first: Callable[[GraphBuilder], Value]
    level: Callable[[GraphBuilder, Value, Value | None], Value]
    logits: Callable[[GraphBuilder, str, Value], Value]
    fed_back: Callable[[GraphBuilder, str, Value], Value] | None
    num_logits: int
    maps_tokens: bool = False
    first_slot: int = 0


def build_draft(parts: DraftParts, *, depth: int, width: int = 1, draws: str = "top") -> Graph:
    """Write one round of a proposer's model.

    depth    levels of candidates; 0 takes in committed tokens and proposes nothing
    width    nodes of a level that go on, and candidates of each node; drawn candidates form a chain, of width 1
    draws    one of DRAWS

    Outputs  of each level l from 0: level{l}.tokens and level{l}.scores [B, R, N], candidates below each of the R nodes
             of the level before and their cumulative log-probabilities; level{l}.next_from [B, W], which of these R * N
             go on. With "ratio" also level{l}.law [B, R, Q]
    """
    assert draws in DRAWS and (draws == "top" or width == 1), (draws, width)
    build = GraphBuilder(f"{parts.name} depth={depth} width={width} {draws}", first_slot=parts.first_slot)
    rows = parts.first(build)
    if depth == 0:
        return build.build([])
    rows, scores = build.last_row("level0.rows", rows), None
    outputs: list[Value] = []
    for level in range(depth):
        at = f"level{level}"
        tokens, logprobs, law = _candidates(build, parts, at, rows, width, draws)
        found, next_tokens, next_from, *more = build.expand_tree(at, tokens, logprobs, scores, width)
        outputs += [tokens, found, next_from] + ([law] if law is not None and draws == "ratio" else [])
        if level + 1 < depth:
            scores, ancestors, next_depth = more
            parents = None
            if parts.fed_back is not None:
                above = parts.fed_back(build, f"{at}.fed_back", rows)
                parents = build.parent_rows(f"{at}.parents", above, next_from, int(tokens.shape[2]))
            build.nodes = Nodes(
                next_tokens, ancestors, next_depth, LEVEL_NODES, DRAFT_PREFIX, "W", first_node=level * width
            )
            build.scope = f"level{level + 1}."
            rows = parts.level(build, next_tokens, parents)
    return build.build(outputs)


def _candidates(
    build: GraphBuilder, parts: DraftParts, at: str, rows: Value, width: int, draws: str
) -> tuple[Value, Value, Value | None]:
    logits = parts.logits(build, f"{at}.logits", rows)
    ids = token_ids(parts.num_logits) if parts.maps_tokens else None
    if draws == "top":
        return *build.top_tokens(at, logits, width, ids), None
    level = int(at.removeprefix("level"))
    stream, offset = (TARGET, level) if draws == "match" else (draft_stream(level + 1), 0)
    return build.draw_draft(at, logits, ids, stream=stream, offset=offset)


def token_ids(num_logits: int) -> Value:
    """Which token of the target each of the draft's own is."""
    return Value("draft.token_ids", (num_logits,), DType.INT32, Role.WEIGHT)
