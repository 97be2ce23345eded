"""Rounds of proposers' models on the cuda backend: every op has a kernel, a step is its launches and nothing else.

Kernels are stubbed, so this runs without a device and without the interpreter.

Run: pytest tests/runtime/test_draft_launches.py
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.device_pass import bind_case
from support.graphs import TINY
from support.kernel_case import Maker
from support.round_cases import TARGET, draft_model, eagle, medusa_case, round_case
from support.stubbed import Refuse, record_launches

from tspec.core.dtypes import DType
from tspec.core.head_config import MedusaConfig
from tspec.graph.lower import lower
from tspec.graph.passes import fuse
from tspec.graph.plan import Bucket
from tspec.kernels.cuda import attention, draw_draft, expand_tree
from tspec.models import PASS_KINDS, build_graph
from tspec.models.build_graph import Features
from tspec.runtime.cuda_bind import DeviceModel, bind_device_plan, feature_tensor, kv_tensors

MODELS = {
    "llama": draft_model,
    "llama with biases": partial(draft_model, has_qkv_bias=True, has_o_bias=True, has_mlp_bias=True),
    "qwen3": partial(draft_model, "qwen3", has_qk_norm=True, tie_word_embeddings=True),
    "mistral": partial(draft_model, "mistral", num_layers=2, sliding_windows=(9, None)),
    "eagle1": partial(eagle, 1),
    "eagle1 with norms": partial(
        eagle, 1, fc_bias=True, has_embedding_norm=True, has_hidden_norm=True, has_final_norm=True
    ),
    "eagle3": partial(eagle, 3, draft_vocab_size=97),
    "eagle3 of two layers": partial(
        eagle, 3, num_layers=2, fc_norm=True, norm_before_fc=True, norm_before_residual=True, norm_output=True
    ),
}
SHAPES = ((0, 1, "top"), (4, 3, "top"), (3, 1, "match"), (3, 1, "ratio"))
MEDUSA = MedusaConfig(3, 1, TARGET.hidden_size, TARGET.vocab_size, True, draft_vocab_size=97)


def cases():
    found = []
    for name, make in MODELS.items():
        for depth, width, draws in SHAPES:
            label = f"{name}-{depth}x{width}-{draws}"
            found.append(
                pytest.param(partial(round_case, Maker(label), make(), depth, width, draws), id=label)
            )
    return [*found, pytest.param(partial(medusa_case, Maker("medusa"), MEDUSA, 3, 3), id="medusa")]


@pytest.fixture
def launched(monkeypatch):
    return record_launches(monkeypatch)


@pytest.mark.parametrize("make_case", cases())
@pytest.mark.parametrize("launch_pdl", [True, False], ids=("early", "late"))
def test_a_round_is_its_kernels_on_the_same_addresses_and_nothing_else(make_case, launch_pdl, launched):
    bound = bind_case(make_case(), launch_pdl=launch_pdl).bound
    with Refuse():
        bound.launch()
    first = list(launched)
    assert len(first) >= len(bound.launches)
    launched.clear()
    for name in ("num_nodes", "level_nodes", "draft_prefix"):
        if name in bound.inputs.tensors:
            bound.inputs.tensors[name].fill_(1)
    bound.launch()
    assert launched == first
    for each in first:
        assert each.options["USE_PDL"] is launch_pdl, each.name
        assert each.options.get("launch_pdl", False) is launch_pdl, each.name


def test_a_level_is_five_launches_a_layer_and_four_more(launched):
    """Embedding, head, likeliest tokens, next level."""
    counts = []
    for depth in (1, 2, 3):
        launched.clear()
        bind_case(round_case(Maker("depth"), draft_model(num_layers=2), depth, 3)).bound.launch()
        counts.append(len(launched))
    assert counts[1] - counts[0] == counts[2] - counts[1] == 5 * 2 + 4


def test_levels_compile_nothing_of_their_own(launched):
    """What changes from one level to the next is a number at run time, and no constant."""
    bind_case(round_case(Maker("levels"), draft_model(num_layers=1), 4, 3)).bound.launch()
    levels = [each for each in launched if each.name == "_rope_attention"][1:]
    assert len(levels) == 3 and all(each.options == levels[0].options for each in levels)
    trees = [each for each in launched if each.name == "_expand_tree"][1:]
    assert len(trees) == 3 and all(each.options == trees[0].options for each in trees)
    for kernel, names in (
        (attention._rope_attention, {"first_node"}),
        (expand_tree._expand_tree, {"first_node", "depth"}),
        (draw_draft._draw_blocks, {"stream", "offset"}),
    ):
        assert names <= {each.name for each in kernel.params if each.do_not_specialize}


def test_rows_of_a_level_live_by_its_own_count(launched):
    """Embedding of the pass, then that of a level."""
    bound = bind_case(round_case(Maker("live"), draft_model(), 2, 3)).bound
    bound.launch()
    tensors = bound.inputs.tensors
    found = [each.addresses[-1] for each in launched if each.name == "_embed"]
    assert found == [tensors["num_nodes"].data_ptr(), tensors["level_nodes"].data_ptr()]


@pytest.mark.parametrize("layers", [None, (0, 1, 2)], ids=str)
@pytest.mark.parametrize("kind", PASS_KINDS)
def test_every_pass_of_a_target_can_keep_features(kind, layers, launched):
    """Of a bfloat16 target; a norm that is read twice stands alone, and so do the products behind it."""
    config = replace(TINY, dtype=DType.BFLOAT16)
    features = Features(layers)
    graph = fuse(build_graph(config, features=features, activations=DType.BFLOAT16, **PASS_KINDS[kind]))
    plan, device = lower(graph, Bucket(2, 4), max_model_len=130), torch.device("cpu")
    weights = {
        name: torch.zeros(
            spec.shape, dtype=torch.bfloat16 if spec.use in ("matrix", "gate_up", "embed") else torch.float32
        )
        for name, spec in plan.weights.items()
    }
    kept = feature_tensor(plan, 6, device)
    assert kept is not None and kept.shape == (6, 64, features.width(config.hidden_size))
    model = DeviceModel(device, "sm_80", weights, *kv_tensors(plan, 6, device), features=kept)
    bind_device_plan(plan, model).launch()
    assert sum(each.name == "_keep_features" for each in launched) == len(layers or (None,))


def test_a_plan_without_attention_has_no_layers_of_keys():
    """And one without features has none."""
    medusa, llama = (
        medusa_case(Maker("medusa"), MEDUSA, 1, 1),
        round_case(Maker("llama"), draft_model(), 1, 1),
    )
    for case, layers in ((medusa, 0), (llama, 2)):
        rows, nodes = case.inputs["tokens"].shape
        plan = lower(case.graph, Bucket(rows, nodes), max_model_len=64)
        k_cache, v_cache = kv_tensors(plan, 5, torch.device("cpu"))
        assert k_cache.shape[:2] == v_cache.shape[:2] == (layers, 5)
        assert (feature_tensor(plan, 5, torch.device("cpu")) is None) is (case is llama)
