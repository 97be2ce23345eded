"""Every variant of every cuda kernel at the shipped configurations, one list for tests, gates and tables.

A kernel family adds its own `cases()` to FAMILIES. Compiles nothing.
"""

from tspec.kernels.cuda import attention_cases, draft_cases, linear_cases, sampling_cases
from tspec.kernels.cuda.resources import AotCase

FAMILIES = (linear_cases.cases, sampling_cases.cases, attention_cases.cases, draft_cases.cases)
"""Each gives the cases of one family, for all architectures."""


def aot_cases() -> list[AotCase]:
    """All cases, family by family."""
    return [case for family in FAMILIES for case in family()]
