"""The part of a CUDA device in kernel tuning: as `autotune/cpu_tuner.py`, with spaces that are pruned first.

An op's launches of all layers are recorded into a CUDA graph each configuration and number of nodes, so that the
host's own time is not measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from autotune.event_clock import FLUSH_BYTES, EventClock
from autotune.pass_case import NODES, max_model_len, nodes_of, pass_inputs, timed_launches
from autotune.prune import Config, prune
from autotune.search import nearest_first
from autotune.tunable import TunableOp, tunable_ops
from tspec.build import BuildOptions, build_engine
from tspec.core.speculative_config import SpeculativeConfig
from tspec.graph.plan import Bucket
from tspec.kernels.cuda.store import CudaStore, open_store
from tspec.kernels.cuda.tuned import TunedTable, default_attention_tuned, default_tuned
from tspec.kernels.cuda.tuned_checks import TALLEST_TILE
from tspec.kernels.tuned_ops import by_shape
from tspec.kernels.tuned_store import TunedKey
from tspec.progress import progress_bar
from tspec.runtime.cuda_bind import DevicePlan
from tspec.runtime.cuda_executor import CudaExecutor, find_device
from tspec.runtime.inputs import PassInputs


@dataclass(frozen=True, slots=True)
class Recorded:
    """A graph, and the plan whose memory it runs on."""

    graph: torch.cuda.CUDAGraph
    plan: DevicePlan


class CudaTuner:
    """A context manager. Has run on no device yet; what it is made of is tested one by one."""

    def __init__(self, folder: Path, dtype: str = "auto") -> None:
        device, self._arch, _ = find_device()
        self._name = torch.cuda.get_device_name(device)
        options = BuildOptions(
            dtype=dtype, device="cuda", max_model_len=max_model_len(folder), max_num_seqs=1
        )
        with progress_bar() as on_progress:
            self._engine = build_engine(folder, SpeculativeConfig(method="none"), options, on_progress)
        executor = self._engine.executor
        assert isinstance(executor, CudaExecutor), executor
        self._executor = executor
        scrap = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
        self._clock = EventClock(torch.cuda, scrap.zero_)
        self._launches = tunable_ops(executor.bind("all", Bucket(1, NODES[0])).plan)
        self.ops = list(self._launches)
        self._graphs: dict[tuple[TunableOp, Config], list[Recorded]] = {}

    def measure(self, op: TunableOp, tuned: Config) -> Sequence[float]:
        """Seconds of the op's launches, one number for each of its cases."""
        if (op, tuned) not in self._graphs:
            self._graphs[op, tuned] = [self._record(op, tuned, nodes) for nodes in nodes_of(op)]
        return [self._clock.seconds(each.graph.replay) for each in self._graphs[op, tuned]]

    def has(self, op: TunableOp) -> bool:
        """Whether the store has an entry for it now."""
        return self._open().lookup(op.op, op.dtype.value, **dict(op.shape)) is not None

    def put(self, op: TunableOp, tuned: Config) -> None:
        """Store what was found. The graphs of the op are given back."""
        self._open().put(op.op, op.dtype.value, tuned, **dict(op.shape))
        self._graphs.clear()

    def space(self, op: TunableOp) -> Sequence[Config]:
        """What pruning leaves; what spills shows in its time, so that nothing is compiled ahead."""
        return nearest_first(prune(op, self._arch, has_time=lambda: False).left, self.default(op))

    def default(self, op: TunableOp) -> Config:
        """What runs without tuning; of attention that of the most rows."""
        shape = dict(op.shape)
        if op.is_attention:
            return default_attention_tuned(shape["head_dim"], TALLEST_TILE, op.dtype, self._arch)
        return default_tuned(op.op, shape["n"], shape["k"], op.dtype, self._arch)

    def _record(self, op: TunableOp, tuned: Config, nodes: int) -> Recorded:
        inputs = pass_inputs(nodes, self._engine.config.vocab_size, self._engine.max_model_len)
        bound, launches = bind_op(self._executor, op, tuned, nodes, inputs)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            launches[0]()  # compiles
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                for launch in launches:
                    launch()
        torch.cuda.current_stream().wait_stream(stream)
        return Recorded(graph, bound)

    def _open(self) -> CudaStore:
        return open_store(self._name, self._arch)

    def __enter__(self) -> "CudaTuner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._graphs.clear()
        self._engine.close()


def bind_op(
    executor: CudaExecutor, op: TunableOp, tuned: Config, nodes: int, inputs: PassInputs
) -> tuple[DevicePlan, list[Callable[[], None]]]:
    """A plan for one sequence of `nodes` in which `op` alone is configured as `tuned`, and the launches to time."""
    bound = executor.bind_with("all", Bucket(1, nodes), table_of(op, tuned), inputs)
    numbers = timed_launches(tunable_ops(bound.plan)[op], nodes)
    return bound, [bound.launches[number] for number in numbers]


def table_of(op: TunableOp, tuned: Config) -> TunedTable:
    """A table with one entry."""
    return TunedTable(*by_shape({TunedKey("", "", op.op, op.dtype.value, op.shape): tuned}))
