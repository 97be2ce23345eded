"""No two values that live at once share bytes, and memory of dead ones is used again.

Run: pytest tests/graph/test_memory.py
"""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import tiny_config

from tspec.core.dtypes import DType
from tspec.graph.builder import STATIC_INPUTS
from tspec.graph.ir import Graph, Op, Value
from tspec.graph.lower import plan_dims
from tspec.graph.memory import ALIGNMENT_BYTES, SLACK_BYTES, plan_memory, spans
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket
from tspec.models import build_graph


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Ops of no particular kind, over values of many sizes: only who makes and reads them matters here."""
    values: list[Value] = []
    ops: list[Op] = []
    for place in range(draw(st.integers(1, 12))):
        reads = tuple(draw(st.lists(st.sampled_from(values), max_size=3))) if values else ()
        sizes = draw(st.lists(st.integers(0, 200), min_size=1, max_size=2))
        made = tuple(Value(f"v{place}.{n}", ("B", size), DType.INT32) for n, size in enumerate(sizes))
        ops.append(Op("any", made, reads))
        values += made
    outputs = tuple(draw(st.lists(st.sampled_from(values), max_size=3, unique=True)))
    return Graph("random", tuple(ops), STATIC_INPUTS, outputs)


def assert_disjoint(graph: Graph, dims: dict[str, int]) -> None:
    plan = plan_memory(graph, dims)
    lives = spans(graph)
    assert set(plan.buffers) == {life.value.name for life in lives}
    for life in lives:
        buffer = plan.buffers[life.value.name]
        assert buffer.offset_bytes % ALIGNMENT_BYTES == 0
        assert buffer.offset_bytes + buffer.size_bytes + SLACK_BYTES <= plan.arena_bytes
    for one, two in combinations(lives, 2):
        if one.first <= two.last and two.first <= one.last:
            low, high = sorted((plan.buffers[one.value.name], plan.buffers[two.value.name]), key=_offset)
            assert low.offset_bytes + low.size_bytes + SLACK_BYTES <= high.offset_bytes


def _offset(buffer):
    return buffer.offset_bytes


@given(graph=graphs(), rows=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_no_two_live_buffers_overlap(graph, rows):
    assert_disjoint(graph, {"B": rows})


@pytest.mark.parametrize("head", ["all", "last", "none"])
@pytest.mark.parametrize("passes", [lambda graph: graph, fuse], ids=["plain", "fused"])
def test_buffers_of_a_model_do_not_overlap(head, passes):
    assert_disjoint(passes(build_graph(tiny_config(), head=head)), plan_dims(Bucket(2, 8), 100))


def test_more_layers_take_no_more_memory():
    dims = plan_dims(Bucket(1, 8), 100)
    two, six = (plan_memory(fuse(build_graph(tiny_config(num_layers=n))), dims) for n in (2, 6))
    assert two.arena_bytes == six.arena_bytes
    assert two.unshared_bytes < six.unshared_bytes


def test_graph_outputs_live_to_the_end():
    graph = build_graph(tiny_config(), with_logits=True)
    last = {life.value.name: life.last for life in spans(graph)}
    assert {name for name, end in last.items() if end == len(graph.ops)} == {
        "out_tokens",
        "num_out",
        "path",
        "logits",
    }


def test_the_report_says_what_reuse_saves():
    plan = plan_memory(fuse(build_graph(tiny_config())), plan_dims(Bucket(1, 64), 100))
    assert plan.report() == "arena 0.03 MiB for 15 buffers (0.09 MiB without reuse)"
