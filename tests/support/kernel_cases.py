"""All cases of all CPU kernels, and how one is judged."""

import numpy as np
import torch
from support.attention_cases import ATTENTION_CASES
from support.cache_cases import CACHE_CASES
from support.cpu_pass import PADDED, Case, run_on_cpu, run_references
from support.product_cases import PRODUCT_CASES
from support.row_cases import ROW_CASES
from support.sampling_cases import SAMPLING_CASES, kept_tokens
from support.tolerance import TOLERANCES

from tspec.core.dtypes import DType

KERNEL_CASES = [*ROW_CASES, *SAMPLING_CASES, *PRODUCT_CASES, *CACHE_CASES, *ATTENTION_CASES]

THREADS = (1, 3)
"""More than the CPUs of a small machine: threads then have to give way to each other."""

ON_SCORES = {case.kind for case in SAMPLING_CASES}
"""Kinds whose oracles see the logits and scores in float32, as all backends do: ties are ties. Sums are in float64."""

_VERDICT = ("out_tokens", "num_out", "path")


def hold_against_reference(case: Case, kind: str, dtype: DType) -> None:
    """Assert that the kernel is within its tolerance of the reference, and the same for any number of threads."""
    tolerance = TOLERANCES[kind, dtype]
    expected = run_references(case, torch.float32 if kind in ON_SCORES else torch.float64)
    found, *others = (run_on_cpu(case, num_threads=count) for count in THREADS)
    if kind == "find_kept":
        expected, found, *others = (_by_kept_tokens(case, each) for each in (expected, found, *others))
    assert found.keys() >= expected.keys()
    for name, reference in expected.items():
        result, reference = (
            live_part(name, tensor, case.inputs["num_nodes"]) for tensor in (found[name], reference)
        )
        torch.testing.assert_close(
            result.double(),
            reference.double(),
            rtol=tolerance.relative,
            atol=tolerance.absolute,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )
        for other in others:
            assert np.array_equal(
                _bits(result), _bits(live_part(name, other[name], case.inputs["num_nodes"]))
            ), name


def live_part(name: str, tensor: torch.Tensor, num_nodes: np.ndarray) -> torch.Tensor:
    """Leave out what belongs to no sequence or node: kernels write nothing there."""
    if name == "kept" or (tensor.is_floating_point() and name not in PADDED):
        return tensor
    if name in _VERDICT:
        return tensor[num_nodes > 0]
    counts = np.minimum(num_nodes, tensor.shape[1])
    return torch.cat([tensor[row, :count] for row, count in enumerate(counts.tolist())])


def _by_kept_tokens(case: Case, outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Which tokens are kept, instead of a threshold: several say the same."""
    return {"kept": kept_tokens(case, outputs), "log_sum": outputs["log_sum"]}


def _bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()
