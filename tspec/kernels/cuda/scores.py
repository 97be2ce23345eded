"""From logits to what a token is chosen by: divided by the temperature, then noise added. Device functions only.

The head's epilogue and the sampling of logits in memory call the same functions, so that both choose the same token.
NaN counts as minus infinity; greedy rows (temperature 0) keep their logits. `Request` is what launchers pass on.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.noise import gumbel


class Request(NamedTuple):
    """How rows are sampled: tensors [B], depth [B, T]; `rows_each` rows a sequence, T = `nodes`. None: not at all."""

    temperature: torch.Tensor | None = None
    seed: torch.Tensor | None = None
    prefix_len: torch.Tensor | None = None
    depth: torch.Tensor | None = None
    num_nodes: torch.Tensor | None = None
    rows_each: int | None = None
    nodes: int | None = None

    def shapes(self, batch: int) -> dict[str, tuple[torch.Tensor | None, tuple, torch.dtype]]:
        """What `check_tensors` holds the operands against: R is T, or 1."""
        nodes = self.nodes if self.rows_each == 1 else self.rows_each
        return {
            "temperature": (self.temperature, (batch,), torch.float32),
            "seed": (self.seed, (batch,), torch.int64),
            "prefix_len": (self.prefix_len, (batch,), torch.int32),
            "depth": (self.depth, (batch, nodes), torch.int32),
            "num_nodes": (self.num_nodes, (batch,), torch.int32),
        }


NO_REQUEST = Request()


@triton.jit
def find_nodes(num_nodes_ptr, row, inside, rows_each):
    """(sequence, node, whether it is a live one) of each row: the node of its place, or the last one if rows_each is 1.

    Shapes   row: [M] int64, `inside`: [M], whether a row is one at all
    """
    sequence = row // rows_each
    count = tl.load(num_nodes_ptr + sequence, mask=inside, other=0)
    node = tl.where(rows_each == 1, count - 1, row % rows_each)
    return sequence, node, inside & (node >= 0) & (node < count)


@triton.jit
def clean(logits):
    """NaN as minus infinity."""
    return tl.where(logits == logits, logits, float("-inf"))


@triton.jit
def scaled(logits, temperature):
    """logits [N, M] / temperature [M], rounded once; as they are where it is 0."""
    return tl.div_rn(logits, tl.where(temperature > 0, temperature, 1.0)[None, :])


@triton.jit
def next_position(sequence, node, live, prefix_len_ptr, depth_ptr, nodes):
    """The position after each row's node; [M] int32."""
    depth = tl.load(depth_ptr + sequence * nodes + node, mask=live, other=0)
    return tl.load(prefix_len_ptr + sequence, mask=live, other=0) + depth + 1


@triton.jit
def noisy(scores, temperature, sequence, live, position, stream, first_token, seed_ptr):
    """scores [N, M] + noise of a stream at each row's `position`; as they are where temperature is 0."""
    seed = tl.load(seed_ptr + sequence, mask=live, other=0)
    noise = gumbel(seed, position, first_token, stream, scores.shape[0])
    return tl.where((temperature > 0)[None, :], scores + noise, scores)


@triton.jit
def is_kept(scores, token, threshold, first_tie):
    """Whether each token is in the set that `find_kept` describes. Operands broadcast to one shape."""
    return (scores > float("-inf")) & ((scores > threshold) | ((scores == threshold) & (token >= first_tie)))


@triton.jit
def weigh(scores, top):
    """exp(scores - top) in units of 2**-40, int64: sums of these have no order. `top` is at least as large as all."""
    return (tl.exp(scores - top) * 1099511627776.0).to(tl.int64)


@triton.jit
def log_weight(weight):
    """The log of a weight: of a sum of exp(scores - top)."""
    return tl.log(weight.to(tl.float32) * (1 / 1099511627776))
