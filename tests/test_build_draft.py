"""A proposer's model that does not fit its target is refused by name when the engine is built, before any weight.

Which folders are refused, and with which words, is tested in tests/checkpoint; here, that an engine asks.

Run: pytest tests/test_build_draft.py
"""

import json

import pytest
import torch
from support.engines import build
from support.head_checkpoints import write_authors, write_medusa, write_sglang, write_speculators
from support.tiny_heads import TinyEagle, tiny_eagle, tiny_medusa
from support.tiny_models import tiny_checkpoint

import tspec.build
from tspec.build import load_config
from tspec.core.errors import CheckpointError, ConfigError, ContractError
from tspec.kernels.cuda import norm
from tspec.runtime import cuda_bind, cuda_executor

SMALL = {"hidden": 48, "heads": 6, "vocab": 61}
AUX = (0, 1, 2)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("build") / "target"
    tiny_checkpoint(folder, "llama", **SMALL)
    return folder


@pytest.fixture(scope="module")
def config(target):
    return load_config(target)


@pytest.fixture
def other(tmp_path):
    """Configurations of other targets."""

    def of(**changes):
        folder = tmp_path / "other"
        tiny_checkpoint(folder, "llama", **SMALL | changes)
        return load_config(folder)

    return of


@pytest.fixture
def refusal(target, monkeypatch):
    """Build an engine that must be refused before it takes memory or reads weights; returns what it says."""

    def no_weights(*args, **kwargs):
        raise AssertionError("weights were read")

    monkeypatch.setattr(tspec.build, "pack_weights", no_weights)
    monkeypatch.setattr(tspec.build, "CpuExecutor", no_weights)

    def of(error=CheckpointError, **speculative):
        with pytest.raises(error) as caught:
            build(target, speculative)
        message = str(caught.value)
        assert "\n" not in message and len(message) < 600
        return message

    return of


def eagle(tmp_path, config, version=1, **changes):
    head = tiny_eagle(config, version, **{"aux": AUX} if version == 3 else {}, **changes)
    return (write_speculators if version == 3 else write_authors)(tmp_path / "head", head)


@pytest.mark.parametrize("version", [1, 3])
def test_a_head_of_another_hidden_size(tmp_path, other, refusal, version):
    message = refusal(method="eagle", model=eagle(tmp_path, other(hidden=96), version))
    assert "got 96, need 48, the target's" in message


@pytest.mark.parametrize("version", [1, 3])
def test_a_head_of_another_vocabulary(tmp_path, other, refusal, version):
    message = refusal(method="eagle", model=eagle(tmp_path, other(vocab=64), version))
    assert "got 64, need 61, the target's" in message


def test_a_head_of_a_deeper_target(tmp_path, other, refusal):
    head = tiny_eagle(other(layers=8), 3)
    assert head.aux == (2, 4, 5)
    message = refusal(method="eagle3", model=write_sglang(tmp_path / "head", head))
    assert "hidden states that the head reads: got the" in message
    assert "layers of the target, which has 2" in message


def test_an_offset_that_leaves_the_target(tmp_path, config, refusal):
    folder = eagle(tmp_path, config, 3)
    message = refusal(method="eagle3", model=folder, aux_layer_offset=1)
    assert "layers of the target, which has 2" in message


@pytest.mark.parametrize(
    ("changes", "words"), [({"hidden": 96}, "hidden size"), ({"vocab": 64}, "vocabulary of the heads")]
)
def test_medusa_heads_of_another_target(tmp_path, other, refusal, changes, words):
    message = refusal(method="medusa", model=write_medusa(tmp_path / "head", tiny_medusa(other(**changes))))
    assert words in message and "the target's" in message


@pytest.mark.parametrize(
    ("method", "kind"),
    [("medusa", "eagle1"), ("eagle3", "eagle1"), ("eagle", "medusa"), ("medusa", "eagle3")],
)
def test_a_method_that_is_not_the_heads(tmp_path, config, refusal, method, kind):
    if kind == "medusa":
        folder = write_medusa(tmp_path / "head", tiny_medusa(config))
    else:
        folder = eagle(tmp_path, config, int(kind[-1]))
    message = refusal(method=method, model=folder)
    assert f"got one of format {kind}, need one for method {method}. Set method to" in message


def test_a_head_where_a_draft_model_should_be_and_the_reverse(tmp_path, config, target, refusal):
    folder = eagle(tmp_path, config)
    assert str(folder) in refusal(method="draft_model", model=folder)
    assert "head" in refusal(method="eagle", model=target)


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "medusa"])
def test_a_folder_that_is_not_there(tmp_path, refusal, method):
    assert "nowhere" in refusal(method=method, model=tmp_path / "nowhere")


def test_a_draft_model_whose_weights_are_not_all_there(tmp_path, target, refusal):
    folder = tmp_path / "draft"
    tiny_checkpoint(folder, "llama", **SMALL)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 3}))
    message = refusal(method="draft_model", model=folder)
    assert "model.layers.2" in message and str(folder) in message


def test_more_levels_than_a_pass_has_nodes(tmp_path, config, refusal):
    message = refusal(
        ConfigError,
        method="eagle",
        model=eagle(tmp_path, config),
        draft_top_k=16,
        draft_depth=5,
        num_speculative_tokens=60,
    )
    assert "draft_depth: got 5 levels of 16 nodes, need at most 63 nodes that go on" in message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_head_of_another_dtype_is_no_fault(tmp_path, config, target, dtype):
    """Nor is a target that is loaded in another dtype than its own: the CPU takes each as it is."""
    head: TinyEagle = tiny_eagle(config, 1, dtype=dtype)
    folder = write_authors(tmp_path / "head", head)
    build(target, {"method": "eagle", "model": folder}, dtype="bfloat16").close()


def test_rows_that_are_too_wide_for_a_device_are_refused_before_weights_are_read(
    target, config, tmp_path, monkeypatch
):
    """Those that this head norms before it joins them; at their launch all before it would be compiled."""
    write_speculators(tmp_path, tiny_eagle(config, 3, aux=AUX))
    monkeypatch.setattr(norm, "MAX_COLS", 40)
    monkeypatch.setattr(cuda_executor, "find_device", lambda: (torch.device("cpu"), "sm_80", 1 << 30))
    monkeypatch.setattr(cuda_bind, "load_device_weights", None)
    with pytest.raises(ContractError, match="columns of rms_norm: got 48, need at most 40 on a device"):
        build(target, {"method": "eagle3", "model": tmp_path}, device="cuda", kv_cache_mib=2)
