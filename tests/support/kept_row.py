"""What the CPU kernel keeps of one row of logits, and what the oracle and the kernel may differ in."""

import numpy as np
import torch

from tspec.kernels.cpu.kept import Filter, carve_work, keep_row, kept_scratch_bytes
from tspec.kernels.cpu.simd import store_f32, store_f64, store_i32
from tspec.kernels.jit import native
from tspec.kernels.reference.sampling import is_kept
from tspec.runtime.memory import address, allocate

LIMIT_ERROR = 1e-6
"""How near to top_p the mass before a token may lie for either answer to be right."""


@native()
def _keep(out, logits, vocab, temperature, top_k, top_p, min_p, scratch):
    found = keep_row(logits, vocab, Filter(temperature, top_k, top_p, min_p), carve_work(scratch, vocab))
    store_f32(out, found[0])
    store_i32(out + 4, np.int32(found[1]))
    store_f64(out + 8, found[2])


def keep(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(scores float32 [V], is kept bool [V], log_sum) of one row of float32 logits."""
    logits = np.ascontiguousarray(logits, np.float32)
    scratch, out = allocate(kept_scratch_bytes(len(logits))), np.zeros(2, np.float64)
    exact = [np.float64(np.float32(share)) for share in (top_p, min_p)]
    _keep(
        address(out),
        address(logits),
        len(logits),
        np.float32(temperature),
        top_k,
        exact[0],
        exact[1],
        address(scratch),
    )
    scores = torch.from_numpy(np.where(np.isnan(logits), -np.inf, logits).astype(np.float32)) / np.float32(
        temperature
    )
    threshold, first_tie = out.view(np.float32)[0], out.view(np.int32)[1]
    return scores, is_kept(scores, float(threshold), int(first_tie)), float(out[1])


def assert_same_kept(
    found: torch.Tensor, expected: torch.Tensor, scores: torch.Tensor, top_k: int, top_p: float
) -> None:
    """Equal sets; where the mass before a token is top_p, to 1e-6, the token may be in or out."""
    different = found != expected
    if not different.any():
        return
    among = scores.double()
    if 0 < top_k < len(scores):
        among = among.masked_fill(scores < scores.topk(top_k).values[-1], -torch.inf)
    mass = among.softmax(0)
    # Of equal tokens the highest comes first.
    order = sorted(range(len(scores)), key=lambda token: (float(scores[token]), token), reverse=True)
    before = torch.empty_like(mass)
    before[order] = mass[order].cumsum(0) - mass[order]
    distance = (before[different] - float(np.float32(top_p))).abs()
    assert top_p < 1 and distance.max() <= LIMIT_ERROR, distance
