"""All cases of all CPU kernels, and how one is judged."""

import numpy as np
import torch
from support.attention_cases import ATTENTION_CASES
from support.cache_cases import CACHE_CASES
from support.cpu_pass import Case, dense, is_padded, run_on_cpu, run_references
from support.draft_cases import DRAFT_CASES
from support.level_cases import LEVEL_CASES
from support.product_cases import PRODUCT_CASES
from support.row_cases import ROW_CASES
from support.sampling_cases import SAMPLING_CASES, kept_tokens
from support.tolerance import TOLERANCES

from tspec.core.dtypes import DType

KERNEL_CASES = [
    *ROW_CASES, *SAMPLING_CASES, *PRODUCT_CASES, *CACHE_CASES, *ATTENTION_CASES, *LEVEL_CASES, *DRAFT_CASES,
]  # fmt: skip

THREADS = (1, 3)
"""More than the CPUs of a small machine: threads then have to give way to each other."""

ON_SCORES = {case.kind for case in SAMPLING_CASES} | {"top_tokens", "draw_draft", "expand_tree"}
"""Kinds whose oracles see the logits and scores in float32, as all backends do: ties are ties. Sums are in float64."""

_VERDICT = ("out_tokens", "num_out", "path")
_WHOLE = ("scores", "next_tokens", "next_from", "next_scores", "next_ancestors", "next_depth")
"""Outputs of which padding is written, too. Last parts of names."""


def hold_against_reference(case: Case, kind: str, dtype: DType) -> None:
    """Assert that the kernel is within its tolerance of the reference, and the same for any number of threads."""
    tolerance = TOLERANCES[kind, dtype]
    expected = run_references(case, torch.float32 if kind in ON_SCORES else torch.float64)
    found, *others = (run_on_cpu(case, num_threads=count) for count in THREADS)
    if kind == "find_kept":
        expected, found, *others = (_by_kept_tokens(case, each) for each in (expected, found, *others))
    assert found.keys() >= expected.keys()
    for name, reference in expected.items():
        result, reference = (live_part(case, name, tensor) for tensor in (found[name], reference))
        torch.testing.assert_close(
            result.double(),
            reference.double(),
            rtol=tolerance.relative,
            atol=tolerance.absolute,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )
        for other in others:
            assert np.array_equal(_bits(result), _bits(live_part(case, name, other[name]))), name


def live_part(case: Case, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Leave out what belongs to no sequence or node: kernels write nothing there."""
    is_whole = name == "kept" or name.rpartition(".")[2] in _WHOLE
    if is_whole or (tensor.is_floating_point() and not is_padded(name)):
        return tensor
    if name in _VERDICT:
        return tensor[case.inputs["num_nodes"] > 0]
    return dense(tensor, case.live_rows(name))


def _by_kept_tokens(case: Case, outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Which tokens are kept, instead of a threshold: several say the same."""
    return {"kept": kept_tokens(case, outputs), "log_sum": outputs["log_sum"]}


def _bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()
