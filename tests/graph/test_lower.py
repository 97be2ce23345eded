"""Plans: numbers for dims, buffers for values, uses of weights, costs of launches.

Run: pytest tests/graph/test_lower.py
"""

import pytest
from support.graphs import tiny_config

from tspec.core.dtypes import DType
from tspec.graph.lower import lower
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket
from tspec.models import build_graph

BUCKET = Bucket(2, 8)


def plan_of(head="all", bucket=BUCKET, context=0, **config):
    return lower(
        fuse(build_graph(tiny_config(**config), head=head)), bucket, max_model_len=130, context=context
    )


def test_inputs_have_the_sizes_of_the_bucket():
    assert plan_of().inputs == {
        "tokens": ((2, 8), DType.INT32),
        "ancestors": ((2, 8), DType.INT64),
        "depth": ((2, 8), DType.INT32),
        "num_nodes": ((2,), DType.INT32),
        "prefix_len": ((2,), DType.INT32),
        "block_table": ((2, 4), DType.INT32),  # 130 tokens and a tree of 64 nodes behind them
        "temperature": ((2,), DType.FLOAT32),
        "seed": ((2,), DType.INT64),
    }


def test_kv_caches_stay_symbolic_in_their_blocks():
    states = plan_of(dtype=DType.BFLOAT16).states
    assert list(states) == ["k_cache.0", "v_cache.0", "k_cache.1", "v_cache.1"]
    assert states["v_cache.1"] == (("num_blocks", 2, 64, 8), DType.BFLOAT16)


def test_every_operand_of_a_launch_is_in_the_plan():
    for head in ("all", "last", "none"):
        plan = plan_of(head)
        places = {*plan.inputs, *plan.buffers, *plan.weights, *plan.states}
        for launch in plan.launches:
            assert {name for name in (*launch.outputs, *launch.inputs) if name is not None} <= places
        assert set(plan.outputs) <= set(plan.buffers)


def test_launches_are_numbered_in_order():
    plan = plan_of()
    assert [launch.number for launch in plan.launches] == list(range(len(plan.launches)))


def test_weights_say_which_tensors_they_join_and_who_reads_them():
    weights = plan_of(architecture="qwen3").weights
    attention = "model.layers.1.self_attn"
    joined = weights[f"{attention}.qkv_proj.weight"]
    assert joined.parts == tuple(f"{attention}.{name}_proj.weight" for name in "qkv")
    assert (joined.shape, joined.use) == ((64, 24), "matrix")
    uses = {name: spec.use for name, spec in weights.items() if "layers.0" not in name}
    assert uses == {
        "model.embed_tokens.weight": "embed",
        "rope.cos": "derived",
        "rope.sin": "derived",
        "model.layers.1.input_layernorm.weight": "norm",
        f"{attention}.qkv_proj.weight": "matrix",
        f"{attention}.q_norm.weight": "norm",
        f"{attention}.k_norm.weight": "norm",
        f"{attention}.o_proj.weight": "matrix",
        "model.layers.1.post_attention_layernorm.weight": "norm",
        "model.layers.1.mlp.gate_up_proj.weight": "gate_up",
        "model.layers.1.mlp.down_proj.weight": "matrix",
        "model.norm.weight": "norm",
        "lm_head.weight": "matrix",
    }
    assert weights["rope.cos"].shape == (194, 4)
    assert weights["rope.cos"].parts == ()


def test_joined_biases_are_used_as_biases():
    weights = plan_of(architecture="qwen2").weights
    bias = weights["model.layers.0.self_attn.qkv_proj.bias"]
    assert (bias.use, bias.shape, bias.dtype, len(bias.parts)) == ("bias", (64,), DType.FLOAT32, 3)


def test_a_tied_embedding_is_used_as_the_matrix_of_the_head():
    weights = plan_of(tie_word_embeddings=True).weights
    assert weights["model.embed_tokens.weight"].use == "matrix"
    assert "lm_head.weight" not in weights


def test_a_plan_moves_each_streamed_weight_once():
    plan = plan_of(bucket=Bucket(1, 1))
    streamed = sum(
        spec.shape[0] * spec.shape[1] * 4
        for spec in plan.weights.values()
        if spec.use in ("matrix", "gate_up")
    )
    moved = sum(launch.bytes_moved for launch in plan.launches)
    assert streamed < moved < 1.5 * streamed


@pytest.mark.parametrize("window", [None, 16])
def test_a_longer_context_costs_only_attention(window):
    short, long = (
        plan_of(architecture="mistral", sliding_windows=(window,) * 2, context=n) for n in (0, 100)
    )
    grown = [
        (one.kind, two.bytes_moved - one.bytes_moved)
        for one, two in zip(short.launches, long.launches, strict=True)
        if one.bytes_moved != two.bytes_moved
    ]
    seen = window or 100
    assert grown == [("rope_attention", 2 * 2 * seen * 2 * 8 * 4)] * 2


def test_the_last_chunk_of_a_prefill_takes_one_row_to_the_head():
    plan = plan_of("last", bucket=Bucket(1, 64))
    assert plan.buffers["layers.1.mlp_residual"].shape == (1, 1, 24)
    assert plan.buffers["layers.1.act"].shape == (1, 1, 20)
    assert plan.buffers["layers.0.act"].shape == (1, 64, 20)
    assert plan.buffers["node_tokens"].shape == (1, 1)


@pytest.mark.parametrize("sampling", ["filtered", "edited"])
def test_of_a_ratio_pass_only_logits_are_as_wide_as_the_vocabulary(sampling):
    """No law of the target is written, nor a residual; the draft's law comes from outside."""
    config = tiny_config(vocab_size=1009)
    graph = fuse(build_graph(config, head="ratio", sampling=sampling))
    plan = lower(graph, BUCKET, max_model_len=130)
    wide = {name for name, buffer in plan.buffers.items() if config.vocab_size in buffer.shape}
    assert wide == ({"logits", "edited"} if sampling == "edited" else {"logits"})
    given = {name for name, (shape, _) in plan.inputs.items() if config.vocab_size in shape}
    assert given - {"counts", "bias"} == {"draft_logprobs"}
