"""From logits to tokens: edits, what is kept, samples, log-probabilities. NaN counts as minus infinity everywhere."""

import numpy as np
import torch

from tspec.core.noise import TARGET, gumbel
from tspec.core.sampling import EDIT_BIAS, EDIT_MASK, EDIT_PENALTIES, NO_TOKEN


def clean(logits: torch.Tensor) -> torch.Tensor:
    """Logits in which NaN is minus infinity."""
    return logits.masked_fill(logits.isnan(), -torch.inf)


def live_node(row: int, rows: int, count: int) -> int | None:
    """The node that row `row` of `rows` stands for: itself; the last one where there is one row a sequence."""
    node = row if rows > 1 else count - 1
    return node if 0 <= node < count else None


def edit_logits(
    attrs: dict,
    logits: torch.Tensor,
    edits: torch.Tensor,
    penalties: torch.Tensor,
    counts: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor,
    tokens: torch.Tensor,
    ancestors: torch.Tensor,
    num_nodes: torch.Tensor,
) -> tuple[torch.Tensor]:
    """Bias, then repetition penalty, then frequency and presence penalties, then mask; each where `edits` says.

    counts: twice the times a token is in the output, plus 1 if it is in the prompt. Candidates above a node, and the
    node itself, count as output: what plain decoding would have counted there. The root is counted already.
    """
    out = clean(logits).clone()
    rows = out.shape[1]
    for batch, flags in enumerate(edits.tolist()):
        for row in range(rows):
            line = out[batch, row]
            if flags & EDIT_BIAS:
                line += bias[batch]
            if flags & EDIT_PENALTIES and live_node(row, rows, int(num_nodes[batch])) is not None:
                seen = counts[batch].clone()
                path = int(ancestors[batch, row]) & ~1 if rows > 1 else 0
                for node in range(1, tokens.shape[1]):
                    if path >> node & 1:
                        seen[tokens[batch, node]] += 2
                _penalise(line, seen, *penalties[batch].tolist())
            if flags & EDIT_MASK:
                bits = mask[batch, row, :, None] >> torch.arange(32) & 1
                line[bits.flatten()[: len(line)] == 0] = -torch.inf
    return (out,)


def _penalise(
    line: torch.Tensor, seen: torch.Tensor, repetition: float, presence: float, frequency: float
) -> None:
    """Source: CTRL, arXiv:1909.05858, section 4.1 (repetition); presence and frequency as in the OpenAI API."""
    times = (seen >> 1).to(line.dtype)
    scaled = torch.where(line > 0, line / repetition, line * repetition)
    line.copy_(torch.where(seen > 0, scaled, line))
    line -= frequency * times + presence * (times > 0)


def find_kept(
    attrs: dict,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    num_nodes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (threshold, first_tie, log_sum) of scores = logits / temperature, top-k then top-p then min-p.

    A token is kept if its score is above the threshold, or equal to it and the token at least `first_tie`, and not
    minus infinity. log_sum is the log of the sum of exp(score) over the kept. Greedy rows keep all: (-inf, 0, 0).

    top-k keeps every tie of its last; top-p keeps the tokens before which less than top_p of the mass lies, from the
    likeliest on, of equal ones the highest token first; min-p keeps what is at least min_p times the likeliest.
    top_k < 1 and values of 1 (top_p) and 0 (min_p) keep all. Source: the logits processors of transformers
    """
    shape = logits.shape[:-1]
    threshold = torch.full(shape, -torch.inf, dtype=torch.float32)
    first_tie, log_sum = torch.zeros(shape, dtype=torch.int32), torch.zeros(shape, dtype=torch.float32)
    for batch, row in np.ndindex(*shape):
        if temperature[batch] > 0 and live_node(row, shape[1], int(num_nodes[batch])) is not None:
            scores = (clean(logits[batch, row]) / temperature[batch]).double()
            order = sorted(range(len(scores)), key=lambda token: (float(scores[token]), token), reverse=True)
            kept = _kept_prefix(scores[order], int(top_k[batch]), float(top_p[batch]), float(min_p[batch]))
            if kept:
                last = order[kept - 1]
                threshold[batch, row], first_tie[batch, row] = scores[last], last
                if kept == len(order) or scores[order[kept]] < scores[last]:
                    first_tie[batch, row] = 0
                log_sum[batch, row] = torch.logsumexp(scores[order[:kept]], 0)
    return threshold, first_tie, log_sum


def _kept_prefix(scores: torch.Tensor, top_k: int, top_p: float, min_p: float) -> int:
    """How many of the descending float64 `scores` are kept; 0 if all are minus infinity."""
    kept = int((scores > -torch.inf).sum())
    if 0 < top_k < kept:
        kept = int((scores[:kept] >= scores[top_k - 1]).sum())
    if kept and top_p < 1:
        mass = torch.softmax(scores[:kept], 0)
        kept = max(1, int((mass.cumsum(0) - mass < top_p).sum()))
    if kept and min_p > 0:
        kept = int((torch.exp(scores[:kept] - scores[0]) >= min_p).sum())
    return kept


def is_kept(scores: torch.Tensor, threshold: float, first_tie: int) -> torch.Tensor:
    """Which tokens of one row `find_kept` keeps; bool [V]."""
    tokens = torch.arange(len(scores))
    return (scores > -torch.inf) & ((scores > threshold) | (scores == threshold) & (tokens >= first_tie))


def sample(
    attrs: dict,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    prefix_len: torch.Tensor,
    depth: torch.Tensor,
    num_nodes: torch.Tensor,
    threshold: torch.Tensor | None,
    first_tie: torch.Tensor | None,
) -> tuple[torch.Tensor]:
    """The kept token with the largest score plus noise; the lowest of the largest logits where temperature is 0.

    NO_TOKEN where no logit is above minus infinity, and for rows that are padding.
    """
    out = torch.full(logits.shape[:-1], NO_TOKEN, dtype=torch.int32)
    rows, vocab = logits.shape[1:]
    for batch, row in np.ndindex(*out.shape):
        node = live_node(row, rows, int(num_nodes[batch]))
        if node is None:
            continue
        scores = clean(logits[batch, row])
        if temperature[batch] > 0:
            scores = scores / temperature[batch]
            if threshold is not None and first_tie is not None:
                kept = is_kept(scores.float(), float(threshold[batch, row]), int(first_tie[batch, row]))
                scores = scores.masked_fill(~kept, -torch.inf)
            position = int(prefix_len[batch] + depth[batch, node]) + 1
            scores = scores.double() + torch.from_numpy(
                gumbel(int(seed[batch]), position, TARGET, np.arange(vocab))
            )
        if scores.max() > -torch.inf:
            out[batch, row] = scores.argmax()
    return (out,)


def token_logprobs(
    attrs: dict,
    logits: torch.Tensor,
    chosen: torch.Tensor,
    num_logprobs: torch.Tensor,
    num_nodes: torch.Tensor,
    num_out: torch.Tensor | None,
    path: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (logprobs, top_tokens, top_logprobs) of the unedited logits; of equal ones the lowest token first.

    Entry j is about `chosen[j]`, which was chosen after node j, or with `path` after the j-th node of the path. What
    was not asked for (num_logprobs -1 for nothing, 0 for the chosen token alone) and what was not chosen is (0, -1, 0).
    """
    rows, most = logits.shape[1], attrs["most"]
    logprobs = torch.zeros(chosen.shape, dtype=torch.float32)
    top_tokens = torch.full((*chosen.shape, most), NO_TOKEN, dtype=torch.int32)
    top_logprobs = torch.zeros(top_tokens.shape, dtype=torch.float32)
    for batch, wanted in enumerate(num_logprobs.tolist()):
        for place in range(rows):
            row = place if path is None or place == 0 else int(path[batch, place - 1])
            is_live = live_node(place, rows, int(num_nodes[batch])) is not None
            if num_out is not None:
                is_live = place < int(num_out[batch])
            token = int(chosen[batch, place])
            if wanted < 0 or not is_live or token < 0:
                continue
            line = clean(logits[batch, row]).double()
            values = line.log_softmax(0)
            logprobs[batch, place] = values[token]
            # The order is that of the logits: log-probabilities may round to equal ones.
            best = line.sort(descending=True, stable=True).indices[:wanted]
            top_tokens[batch, place, : len(best)] = best.int()
            top_logprobs[batch, place, : len(best)] = values[best].float()
    return logprobs, top_tokens, top_logprobs
