"""Which configurations of a cuda kernel are not worth a measurement, without running one: no GPU is needed.

illegal   what the kernel's checks refuse on the part
slow      what a bound says: too few bytes of weights in flight to keep the memory busy, or too many partial sums
compiled  what the binary says: spilled registers, no tensor cores, more shared memory than there is
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autotune.tunable import TunableOp
from tspec.core.dtypes import DType
from tspec.core.errors import ContractError
from tspec.kernels.cuda.attention_cases import attention_case
from tspec.kernels.cuda.linear_cases import DTYPES, linear_case, variant_of
from tspec.kernels.cuda.resources import AotCase, Reading, read_case, shared_limit
from tspec.kernels.cuda.tuned import (
    ARCHITECTURES,
    PAIRED_KERNELS,
    AttentionTuned,
    Tuned,
    architecture_of,
)
from tspec.kernels.cuda.tuned_checks import check_attention, check_product, product_shared_bytes
from tspec.kernels.cuda.tuned_space import attention_space, product_space

Config = Tuned | AttentionTuned

GB_S = {"sm_80": 1700.0, "sm_90": 3000.0, "sm_100": 6500.0}
"""Memory bandwidth that a large copy reaches; of sm_100 from its data sheet, less a fifth."""

LATENCY_US = 0.8
"""From a load's issue to its data, under load."""

START_US = 2.0
"""From a kernel's start to its first data and from its last to its end: bounds that differ by less say nothing."""

SLOWEST = 1.5
"""A bound above so many times the op's least one is discarded."""

ROWS = (64, 1)
"""What is compiled: the tallest tile of rows, which needs the most registers, and the least."""

LEAST_ROWS = 16
MAX_THREADS = 2048
"""Rows of the least tile; threads of a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """A configuration that is left out: at which stage, and why."""

    config: Config
    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """What is left of an op's space, and what is not. `num_unread` of those left were not compiled: time was over."""

    left: tuple[Config, ...]
    discarded: tuple[Discarded, ...]
    num_unread: int

    def counts(self) -> Counter[str]:
        """Discarded configurations by stage."""
        return Counter(each.stage for each in self.discarded)


def prune(
    op: TunableOp,
    arch: str,
    has_time: Callable[[], bool] = lambda: True,
    read: Callable[[AotCase], Reading] = read_case,
    space: Sequence[Config] | None = None,
) -> Pruned:
    """Prune the space of `op` on `arch`. `read` compiles a case and reads the binary; it is asked once a variant."""
    every = list(space_of(op, arch)) if space is None else list(space)
    discarded = [Discarded(each, "illegal", why) for each in every if (why := _why_illegal(op, arch, each))]
    legal = [each for each in every if each not in {other.config for other in discarded}]
    slow = list(_slow(op, arch, legal))
    discarded += slow
    left, num_unread = [], 0
    seen: dict[str, str] = {}
    for config in (each for each in legal if each not in {other.config for other in slow}):
        if not has_time():
            num_unread += 1
        elif why := _why_not_compiled(op, arch, config, read, seen):
            discarded.append(Discarded(config, "compiled", why))
            continue
        left.append(config)
    return Pruned(tuple(left), tuple(discarded), num_unread)


def space_of(op: TunableOp, arch: str) -> Iterator[Config]:
    """Every configuration, those that are not legal among them."""
    return attention_space() if op.is_attention else product_space(op.op, arch)


def bound_us(op: TunableOp, arch: str, tuned: Tuned) -> float:
    """Least time of a product with one tile of rows: its bytes over what the weights in flight let memory do.

    Little's law: bandwidth is at most bytes in flight over latency. Partial sums are written and read once. A start
    comes on top, the same for all.
    """
    shape, card = dict(op.shape), ARCHITECTURES[architecture_of(arch)]
    paired = 2 if op.op in PAIRED_KERNELS else 1
    weights = paired * shape["n"] * shape["k"] * op.dtype.itemsize_bytes
    sums = 2 * 4 * paired * LEAST_ROWS * shape["n"] * tuned.split_k if tuned.split_k > 1 else 0
    resident = min(
        card.shared_bytes // product_shared_bytes(op.op, op.dtype, card, tuned),
        MAX_THREADS // (card.lanes * tuned.num_warps),
    )
    programs = -(-shape["n"] // tuned.block_n) * tuned.split_k
    step = paired * tuned.block_n * tuned.block_k * op.dtype.itemsize_bytes
    steps = min(tuned.num_stages, -(-shape["k"] // (tuned.block_k * tuned.split_k)))
    in_flight = min(programs, card.num_multiprocessors * max(resident, 1)) * steps * step
    gb_s = min(GB_S[card.name], in_flight / LATENCY_US / 1e3)
    return START_US + (weights + sums) / gb_s / 1e3


def _slow(op: TunableOp, arch: str, legal: Sequence[Config]) -> Iterator[Discarded]:
    """Products whose bound is far above the least one. Attention has no bound here."""
    bounds = {each: bound_us(op, arch, each) for each in legal if isinstance(each, Tuned)}
    least = min(bounds.values(), default=0.0)
    for config, bound in bounds.items():
        if bound > SLOWEST * least:
            yield Discarded(config, "slow", f"bound {bound:.1f} us, the least one is {least:.1f} us")


def _why_illegal(op: TunableOp, arch: str, config: Config) -> str:
    shape = dict(op.shape)
    try:
        if isinstance(config, AttentionTuned):
            check_attention(op.op, shape["head_dim"], op.dtype, arch, config)
        else:
            check_product(op.op, shape["n"], shape["k"], op.dtype, arch, config)
    except ContractError as error:
        return str(error).split(". ")[0]
    return ""


def _why_not_compiled(
    op: TunableOp, arch: str, config: Config, read: Callable[[AotCase], Reading], seen: dict[str, str]
) -> str:
    """The fault of the first variant that has one, "" where all are well."""
    for case in _cases(op, arch, config):
        key = variant_of(case)
        if key not in seen:
            seen[key] = _fault(op, case, read(case))
        if seen[key]:
            return f"{case.name}: {seen[key]}"
    return ""


def _cases(op: TunableOp, arch: str, config: Config) -> list[AotCase]:
    shape, short = dict(op.shape), DTYPES[op.dtype][0]
    if isinstance(config, AttentionTuned):
        group = shape["num_heads"] // shape["num_kv_heads"]
        return [attention_case(arch, short, shape["head_dim"], group, config)]
    return [linear_case(arch, op.kind, rows, shape["n"], shape["k"], op.dtype, "", config) for rows in ROWS]


def _fault(op: TunableOp, case: AotCase, reading: Reading) -> str:
    if reading.spilled_bytes:
        return f"{reading.spilled_bytes} B a thread spilled at {reading.registers} registers"
    if reading.shared_bytes > shared_limit(case.arch):
        return f"{reading.shared_bytes} B of shared memory, {shared_limit(case.arch)} B there are"
    if op.dtype is not DType.FLOAT32 and not reading.tensor_core:
        return "its products run on no tensor core"
    return ""
