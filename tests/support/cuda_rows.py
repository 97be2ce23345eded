"""Random operands of the cuda kernels, static scratch that starts dirty, and float64 answers to hold results to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tspec.kernels.cuda import head, linear
from tspec.kernels.cuda.launch import Scratch, scratch_bytes
from tspec.kernels.cuda.tuned import Tuned
from tspec.kernels.reference import REFERENCES

Request = tuple[torch.Tensor, ...]
"""What rows are sampled by: temperature, seed, prefix_len [B], depth [B, T], num_nodes [B]."""

EPS = 1e-5
SMALL = Tuned(block_n=16, block_k=32, split_k=1, num_warps=4, num_stages=2)
"""Small blocks, so that small shapes have several of each, and ragged ones."""

HALF_ULP = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}
"""Relative error of one rounding to a dtype."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands of one launch of `kind`; those that the kind lacks are made all the same, and not passed."""

    kind: str
    x: torch.Tensor
    norm: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    residual: torch.Tensor
    request: Request

    @property
    def outputs(self) -> int:
        """N: columns of the output, or V."""
        return self.weight.shape[0] // (2 if self.kind.endswith("silu_mul") else 1)

    def row(self, row: int) -> "Operands":
        """Row `row` of these, alone, after as many tokens; the whole tree stays for a sampled one, as its last node."""
        cut = slice(row, row + 1)
        last = self.request[4].clone().fill_(row + 1)
        return replace(
            self,
            x=self.x[:, cut].contiguous(),
            residual=self.residual[:, cut].contiguous(),
            request=(*self.request[:4], last),
        )


def make_operands(
    kind: str, rows: int, n: int, k: int, dtype: torch.dtype, has_bias: bool = False, seed: int = 0
) -> Operands:
    """Operands whose outputs have the size of 1."""
    generator = torch.Generator().manual_seed(seed)
    outputs = 2 * n if kind.endswith("silu_mul") else n

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return Operands(
        kind,
        normal(1, rows, k).to(dtype),
        1 + normal(k) / 4,
        (normal(outputs, k) * k**-0.5).to(dtype),
        normal(outputs) if has_bias else None,
        normal(1, rows, n).to(dtype),
        make_request([rows], rows),
    )


def make_request(
    counts: Sequence[int], nodes: int, temperatures: Sequence[float] = (0.0,), seed: int = 0
) -> Request:
    """Sequences of `counts` live nodes of `nodes`, at `temperatures` in turn; seeds and prefixes are large."""
    generator = torch.Generator().manual_seed(seed)
    batch = len(counts)
    return (
        torch.tensor([temperatures[sequence % len(temperatures)] for sequence in range(batch)]),
        torch.randint(1 << 40, 1 << 62, (batch,), generator=generator),
        torch.randint(0, 1 << 20, (batch,), generator=generator).int(),
        torch.randint(0, max(nodes, 1), (batch, nodes), generator=generator).int(),
        torch.tensor(counts, dtype=torch.int32),
    )


def make_scratch(operands: Operands, tuned: Tuned) -> Scratch:
    """Just as much as the launch needs; partial sums start as NaN, counters as 0."""
    rows = operands.x.shape[0] * operands.x.shape[1]
    need = scratch_bytes(operands.kind, rows, operands.outputs, operands.x.dtype, tuned)
    return Scratch(
        torch.full((need.partials // 4,), float("nan")), torch.zeros(need.counters // 4, dtype=torch.int32)
    )


def run_kernel(operands: Operands, tuned: Tuned = SMALL, scratch: Scratch | None = None) -> torch.Tensor:
    """Launch the kernel of `operands` once and return its output, which starts as NaN or -7."""
    each, scratch = operands, scratch or make_scratch(operands, tuned)
    kind, lead = each.kind, each.x.shape[:2]
    kernel = getattr(head if "head" in kind else linear, kind)
    norm = (each.norm,) if kind.startswith("norm_") else ()
    more = each.request if kind.endswith("sample") else (each.residual,) if kind == "linear_add" else ()
    if kind.endswith("sample"):
        out = torch.full(lead, -7, dtype=torch.int32)
    else:
        dtype = torch.float32 if "head" in kind else each.x.dtype
        out = torch.full((*lead, each.outputs), float("nan"), dtype=dtype)
    attrs = {"eps": EPS} if norm else {}
    kernel(out, each.x, *norm, each.weight, each.bias, *more, **attrs, tuned=tuned, scratch=scratch)
    return out


def expected(operands: Operands) -> torch.Tensor:
    """The answer of the references in float64, from the operands as they are stored."""
    x, kind, attrs = operands.x.double(), operands.kind, {"eps": EPS}
    if kind.startswith("norm_"):
        (x,) = REFERENCES["rms_norm"](attrs, x, operands.norm)
        kind = kind.removeprefix("norm_")
    more = operands.request if kind == "head_sample" else (operands.residual,) if kind == "linear_add" else ()
    return REFERENCES[kind](attrs, x, operands.weight, operands.bias, *more)[0]


def tolerance(operands: Operands) -> float:
    """Most that an output may be off, for values of the size of 1 to 10.

    One rounding of the output; with a norm also one of each x * norm, whose errors add up as a random walk over K
    terms of size K**-0.5, so to half an ulp of 1, times 5 for the tail; and float32 sums.
    """
    half_ulp = HALF_ULP[operands.x.dtype]
    return 16 * half_ulp + 2e-6 if operands.kind.startswith("norm_") else 6 * half_ulp + 2e-6
