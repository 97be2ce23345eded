"""From a fused graph to the plan of one bucket: dims become numbers, values buffers, ops launches."""

from collections.abc import Mapping

from tspec.core.dtypes import DType
from tspec.core.shapes import blocks_for
from tspec.core.tree import MAX_NODES
from tspec.graph.cost import bind
from tspec.graph.ir import Graph, Op, Role, Shape
from tspec.graph.memory import plan_memory
from tspec.graph.ops import OPS
from tspec.graph.plan import Bucket, Launch, Plan, WeightSpec
from tspec.graph.signature import SIGNATURES

NORMS = ("rms_norm", "head_norm")


def lower(graph: Graph, bucket: Bucket, *, max_model_len: int, context: int = 0, width: int = 1) -> Plan:
    """Return the plan of `graph` for `bucket`.

    max_model_len  most tokens of a sequence; a tree may stand behind them, hence MAX_NODES more slots
    context        committed tokens a sequence that the costs are counted for
    width          nodes of a level of a draft's tree, in graphs that grow one
    """
    dims = plan_dims(bucket, max_model_len, width)
    memory = plan_memory(graph, dims)
    launches = tuple(_launch(number, op, dims, context) for number, op in enumerate(graph.ops))
    return Plan(
        bucket=bucket,
        launches=launches,
        inputs={value.name: (bind(value.shape, dims), value.dtype) for value in graph.inputs},
        outputs=tuple(value.name for value in graph.outputs),
        buffers=memory.buffers,
        weights=_weights(graph, dims),
        states=_states(graph),
        arena_bytes=memory.arena_bytes,
    )


def plan_dims(bucket: Bucket, max_model_len: int, width: int = 1) -> dict[str, int]:
    """Return the numbers behind the symbolic dims of a graph; "num_blocks" is left to the runtime."""
    slots = max_model_len + MAX_NODES
    rows = {"B": bucket.rows, "T": bucket.nodes, "W": width}
    return {**rows, "max_blocks": blocks_for(slots), "max_positions": slots}


def _launch(number: int, op: Op, dims: Mapping[str, int], context: int) -> Launch:
    moved, flops = OPS[op.kind].cost(op, dims, context)
    outputs = tuple(value.base for value in op.outputs)
    inputs = tuple(None if value is None else value.base for value in op.inputs)
    return Launch(number, op.kind, outputs, inputs, op.attrs, _row_dim(op), moved, flops)


def _row_dim(op: Op) -> str:
    """What the op makes rows of; an op that makes none, like a KV write, takes them."""
    roles = (Role.TEMP, Role.INPUT)
    rows = (value for value in (*op.outputs, *op.reads) if value.role in roles and len(value.shape) > 1)
    return str(next(rows).shape[1])


def _weights(graph: Graph, dims: Mapping[str, int]) -> dict[str, WeightSpec]:
    """Collect the weights in the order they are read first.

    A tied embedding is read by `embed` and by the head. It has the head's `use`; `embed` reads that packing.
    """
    found: dict[str, WeightSpec] = {}
    for op in graph.ops:
        for label, value in zip(SIGNATURES[op.kind].inputs, op.inputs, strict=False):
            if value is not None and value.role is Role.WEIGHT:
                use = _use(op.kind, label.name)
                if value.name in found and use == "embed":
                    continue
                shape = bind(value.shape, dims)
                found[value.name] = WeightSpec(value.name, value.parts, shape, value.dtype, use)
    return found


def _use(kind: str, label: str) -> str:
    if label in ("cos", "sin", "draft_index", "token_ids"):
        return "derived"
    if label == "bias":
        return "bias"
    if kind in NORMS or label in ("norm", "q_norm", "k_norm"):
        return "norm"
    return "embed" if kind == "embed" else "gate_up" if kind.endswith("linear_silu_mul") else "matrix"


def _states(graph: Graph) -> dict[str, tuple[Shape, DType]]:
    values = (value for op in graph.ops for value in op.reads if value.role is Role.STATE)
    return {value.base: (value.shape, value.dtype) for value in values}
