"""The CPU's part of kernel tuning: ops of a checkpoint, their spaces, what measures them, and where results go."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from autotune.cpu_timer import CpuTimer, Tuned
from autotune.search import nearest_first
from autotune.tunable import TunableOp
from tspec.kernels.cpu.store import CpuStore, open_store
from tspec.kernels.cpu.tuned import AttentionTuned, ProductTuned, attention_space, product_space


class CpuTuner:
    """A context manager; the model's threads end with it."""

    def __init__(self, folder: Path, num_threads: int | None, dtype: str = "auto") -> None:
        self._timer = CpuTimer(folder, num_threads, dtype)
        self.ops = list(self._timer.ops)
        self.measure = self._timer.measure

    def has(self, op: TunableOp) -> bool:
        """Whether the store has an entry for it now."""
        return self._open().lookup(op.op, op.dtype.value, **dict(op.shape)) is not None

    def put(self, op: TunableOp, tuned: Tuned) -> None:
        """Store what was found, beside what other processes have stored meanwhile."""
        self._open().put(op.op, op.dtype.value, tuned, **dict(op.shape))

    def space(self, op: TunableOp) -> Sequence[Tuned]:
        """All configurations, those near the default first."""
        every = attention_space() if op.is_attention else product_space(self._timer.num_threads)
        return nearest_first(every, self.default(op))

    def default(self, op: TunableOp) -> Tuned:
        """What runs without tuning."""
        return AttentionTuned() if op.is_attention else ProductTuned()

    def _open(self) -> CpuStore:
        return open_store(self._timer.num_threads)

    def __enter__(self) -> "CpuTuner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.close()
