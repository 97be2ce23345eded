"""The draft's own ops: rows of two inputs, features of the target, likeliest tokens, levels of a tree.

A draft's tree grows by levels of W nodes a sequence. Node `node` of a level that starts at `first_node` has bit
first_node + node of the ancestor masks; the root is committed text and has none.
"""

import numpy as np
import torch

from tspec.core.noise import gumbel
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.reference.kv_cache import place_of_slot
from tspec.kernels.reference.sampling import clean, live_node


def concat(attrs: dict, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    """out = a, then b, in each row"""
    return (torch.cat([a, b], dim=-1),)


def silu_add(attrs: dict, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor]:
    """out = x * sigmoid(x) + residual"""
    return (torch.nn.functional.silu(x) + residual,)


def keep_features(
    attrs: dict,
    x: torch.Tensor,
    path: torch.Tensor | None,
    num_out: torch.Tensor | None,
    num_nodes: torch.Tensor,
    prefix_len: torch.Tensor,
    block_table: torch.Tensor,
    features: torch.Tensor,
) -> tuple[torch.Tensor]:
    """Store the row of each committed node at its position, in the columns from `column` on.

    With a verdict these are the root, then the accepted nodes: entry j of the path is at prefix_len + j, of num_out.
    Without, all nodes: a chain of committed tokens.
    """
    kept = features.clone()
    start, width = attrs["column"], x.shape[-1]
    for row, count in enumerate(num_nodes.tolist()):
        nodes = list(range(count))
        if path is not None and num_out is not None:
            nodes = [0, *path[row].tolist()][: int(num_out[row]) if count else 0]
        for place, node in enumerate(nodes):
            block, offset = place_of_slot(block_table, row, int(prefix_len[row]) + place)
            kept[block, offset, start : start + width] = x[row, node].to(kept.dtype)
    return (kept,)


def read_features(
    attrs: dict,
    features: torch.Tensor,
    depth: torch.Tensor,
    block_table: torch.Tensor,
    prefix_len: torch.Tensor,
    num_nodes: torch.Tensor,
) -> tuple[torch.Tensor]:
    """out[row, node] = `width` columns of the features of position prefix_len + depth - 1, the one before the node's.

    Padding, and a node at position 0, which has none before it, are zeros.
    """
    columns = slice(attrs["column"], attrs["column"] + attrs["width"])
    out = torch.zeros(*depth.shape, attrs["width"], dtype=features.dtype)
    for row, count in enumerate(num_nodes.tolist()):
        for node in range(count):
            position = int(prefix_len[row]) + int(depth[row, node])
            if position == 0:
                continue
            block, offset = place_of_slot(block_table, row, position - 1)
            out[row, node] = features[block, offset, columns]
    return (out,)


def top_tokens(
    attrs: dict, logits: torch.Tensor, num_nodes: torch.Tensor, token_ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (tokens, logprobs) of the `most` likeliest of each row; of equal ones the lowest first.

    `token_ids` says which token of the target each of the draft's is. Rows that are padding, and places for which
    there is no token above minus infinity, have NO_TOKEN and minus infinity.
    """
    shape = (*logits.shape[:-1], attrs["most"])
    tokens = torch.full(shape, NO_TOKEN, dtype=torch.int32)
    logprobs = torch.full(shape, -torch.inf, dtype=torch.float32)
    for batch, row in np.ndindex(*shape[:-1]):
        if live_node(row, shape[1], int(num_nodes[batch])) is not None:
            line = clean(logits[batch, row]).double()
            found = torch.log_softmax(line, 0)
            # The order is that of the logits: log-probabilities may round to equal ones.
            best = line.sort(descending=True, stable=True).indices[: attrs["most"]].tolist()
            for place, token in enumerate(token for token in best if line[token] > -torch.inf):
                tokens[batch, row, place] = token if token_ids is None else int(token_ids[token])
                logprobs[batch, row, place] = found[token]
    return tokens, logprobs


def draw_draft(
    attrs: dict,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    prefix_len: torch.Tensor,
    num_nodes: torch.Tensor,
    token_ids: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw one token of each row by Gumbel-max: (tokens, logprobs, law); `most` is 1. Returns law in float32.

    The noise is that of `stream` at position prefix_len + offset, by the draft's own ids. law is the log of the
    probabilities at that temperature. Greedy rows take the largest logit (of equal ones the lowest token), with the
    law at temperature 1. Rows that are padding have NO_TOKEN, and minus infinity everywhere.
    """
    shape, vocab = logits.shape[:-1], logits.shape[-1]
    tokens = torch.full((*shape, 1), NO_TOKEN, dtype=torch.int32)
    law = torch.full(logits.shape, -torch.inf, dtype=torch.float32)
    logprobs = torch.full(tokens.shape, -torch.inf, dtype=torch.float32)
    for batch, row in np.ndindex(*shape):
        if live_node(row, shape[1], int(num_nodes[batch])) is None:
            continue
        scores = clean(logits[batch, row])
        if temperature[batch] > 0:
            scores = scores / temperature[batch]
        drawn = scores.double()
        if temperature[batch] > 0:
            position = int(prefix_len[batch]) + attrs["offset"]
            noise = gumbel(int(seed[batch]), position, attrs["stream"], np.arange(vocab))
            drawn = drawn + torch.from_numpy(noise)
        if scores.max() > -torch.inf:
            token = int(drawn.argmax())
            law[batch, row] = torch.log_softmax(scores.double(), 0)
            tokens[batch, row, 0] = token if token_ids is None else int(token_ids[token])
            logprobs[batch, row, 0] = law[batch, row, token]
    return tokens, logprobs, law


def expand_tree(
    attrs: dict,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
    row_scores: torch.Tensor | None,
    ancestors: torch.Tensor | None,
    level_nodes: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Score the candidates below a level, and make the best of them the next level.

    scores = row_scores + logprobs; those of rows that are no nodes of the level, of NO_TOKEN, and that are no numbers
    are minus infinity.
    Row r of R = 1 is always live where level_nodes is above 0. The next level takes the `level_nodes` best scores, of
    equal ones the one with the lowest index r * N + place, which is `next_from`; their masks are those of the row
    they hang on, and their own bit, first_node + node. next_depth is `depth`. Where candidates run out, and in
    padding: token 0, next_from 0, score minus infinity, the own bit alone.
    """
    rows, most = logprobs.shape[1:]
    width = attrs["width"]
    above = torch.zeros(logprobs.shape[:2]) if row_scores is None else row_scores
    scores = above[..., None].float() + logprobs
    live = torch.arange(rows)[None] < level_nodes.clamp(max=rows)[:, None]
    scores = scores.masked_fill(~live[..., None] | (tokens == NO_TOKEN) | scores.isnan(), -torch.inf)
    batch = len(tokens)
    next_tokens, next_from = torch.zeros(2, batch, width, dtype=torch.int32)
    next_scores = torch.full((batch, width), -torch.inf, dtype=torch.float32)
    own = 1 << (attrs["first_node"] + torch.arange(width, dtype=torch.int64))
    next_ancestors = own.repeat(batch, 1)
    for row, count in enumerate(level_nodes.tolist()):
        flat = scores[row].flatten()
        best = sorted(range(len(flat)), key=lambda place: (-float(flat[place]), place))
        for node, place in enumerate(best[:count]):
            if flat[place] > -torch.inf:
                next_tokens[row, node], next_from[row, node] = tokens[row].flatten()[place], place
                next_scores[row, node] = flat[place]
                if ancestors is not None:
                    next_ancestors[row, node] |= ancestors[row, place // most]
    next_depth = torch.full((batch, width), attrs["depth"], dtype=torch.int32)
    return scores, next_tokens, next_from, next_scores, next_ancestors, next_depth


def parent_rows(
    attrs: dict, x: torch.Tensor, next_from: torch.Tensor, level_nodes: torch.Tensor
) -> tuple[torch.Tensor]:
    """out[row, node] = x[row, next_from[row, node] // most]: the row that each node hangs on. Padding is zero."""
    rows = torch.arange(len(x))[:, None]
    live = torch.arange(next_from.shape[1])[None] < level_nodes[:, None]
    return (x[rows, next_from.long() // attrs["most"]] * live[..., None],)
