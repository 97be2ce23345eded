"""Rotary tables equal those of transformers, for every kind; context limits follow the documented rule.

Run: pytest tests/core/test_rope.py
"""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tspec.core import rope as rope_module
from tspec.core.config import ModelConfig, RopeConfig, RopeKind
from tspec.core.dtypes import DType
from tspec.core.rope import context_limit, rope_table

MAX_POSITION = 64
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

CASES = {
    "default": ({"rope_type": "default"}, RopeConfig()),
    "linear": ({"rope_type": "linear", "factor": 2.5}, RopeConfig(RopeKind.LINEAR, factor=2.5)),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        RopeConfig(RopeKind.LLAMA3, factor=8.0, original_max_position=32),
    ),
    "yarn": (YARN, RopeConfig(RopeKind.YARN, factor=4.0, original_max_position=64)),
    "yarn, not truncated": (
        YARN | {"truncate": False, "beta_fast": 20.0, "beta_slow": 2.0},
        RopeConfig(
            RopeKind.YARN, factor=4.0, original_max_position=64, truncate=False, beta_fast=20.0, beta_slow=2.0
        ),
    ),
    "yarn, attention_factor": (
        YARN | {"attention_factor": 1.75},
        RopeConfig(RopeKind.YARN, factor=4.0, original_max_position=64, attention_factor=1.75),
    ),
    "yarn, mscale": (
        YARN | {"mscale": 0.9, "mscale_all_dim": 0.4},
        RopeConfig(RopeKind.YARN, factor=4.0, original_max_position=64, mscale=0.9, mscale_all_dim=0.4),
    ),
    "yarn, one mscale alone": (
        YARN | {"mscale": 0.9},
        RopeConfig(RopeKind.YARN, factor=4.0, original_max_position=64, mscale=0.9),
    ),
    "yarn, clamped to the head": (
        YARN | {"original_max_position_embeddings": 2**31 - 1},
        RopeConfig(RopeKind.YARN, factor=4.0, original_max_position=2**31 - 1),
    ),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, RopeConfig(RopeKind.DYNAMIC, factor=2.0)),
    "dynamic, odd factor": (
        {"rope_type": "dynamic", "factor": 1.3},
        RopeConfig(RopeKind.DYNAMIC, factor=1.3),
    ),
}


def reference_module(parameters, base, head_dim):
    config = LlamaConfig(
        hidden_size=head_dim * 2,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=MAX_POSITION,
        rope_parameters=dict(parameters, rope_theta=base),
    )
    return LlamaRotaryEmbedding(config)


def reference_table(module, num_positions):
    """One position at a time, as decoding does: the module may change its frequencies as it goes."""
    half = module.inv_freq.shape[0]
    rows = [module(torch.ones(1), torch.tensor([[position]])) for position in range(num_positions)]
    return tuple(torch.cat([row[part][0] for row in rows])[:, :half].numpy() for part in (0, 1))


def with_base(rope, base):
    return RopeConfig(**{name: getattr(rope, name) for name in rope.__slots__} | {"base": base})


@pytest.mark.parametrize("head_dim", [4, 16, 64, 80, 128])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("case", CASES)
def test_tables_equal_the_rotary_module_position_by_position(case, base, head_dim):
    parameters, rope = CASES[case]
    expected = reference_table(reference_module(parameters, base, head_dim), 3 * MAX_POSITION)
    cos, sin = rope_table(with_base(rope, base), head_dim, MAX_POSITION, 3 * MAX_POSITION)
    assert cos.dtype == sin.dtype == np.float32
    assert cos.shape == sin.shape == (3 * MAX_POSITION, head_dim // 2)
    # a frequency may differ in its last bit, and its position multiplies that: 192 * 2**-23 = 2.3e-5
    np.testing.assert_allclose(cos, expected[0], rtol=0, atol=3e-5)
    np.testing.assert_allclose(sin, expected[1], rtol=0, atol=3e-5)


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][1].kind is not RopeKind.DYNAMIC])
def test_frequencies_and_scaling_equal_the_init_functions(case):
    parameters, rope = CASES[case]
    module = reference_module(parameters, 10_000.0, 64)
    frequencies, scaling = module.inv_freq, module.attention_scaling
    if rope.kind is not RopeKind.DEFAULT:
        frequencies, scaling = ROPE_INIT_FUNCTIONS[rope.kind.value](module.config)
    cos, _ = rope_table(rope, 64, MAX_POSITION, 1)
    assert cos[0, 0] == np.float32(scaling)
    # 3 units in the last place: blended frequencies are sums of rounded terms
    np.testing.assert_allclose(rope_module._frequencies(rope, 64), frequencies.numpy(), rtol=4e-7)


def test_dynamic_frequencies_equal_the_init_function_at_each_length():
    parameters, rope = CASES["dynamic"]
    config = reference_module(parameters, 10_000.0, 64).config
    for length in (1, MAX_POSITION, MAX_POSITION + 1, 5 * MAX_POSITION):
        expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=torch.tensor(length))
        position = np.array([[length - 1]], dtype=np.float32)
        ours = rope_module._dynamic_frequencies(rope, 64, MAX_POSITION, position)[0]
        np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_dynamic_changes_nothing_within_max_position(factor):
    plain = rope_table(RopeConfig(), 64, MAX_POSITION, MAX_POSITION)
    dynamic = rope_table(RopeConfig(RopeKind.DYNAMIC, factor=factor), 64, MAX_POSITION, MAX_POSITION + 1)
    for part in (0, 1):
        np.testing.assert_array_equal(dynamic[part][:MAX_POSITION], plain[part])


@pytest.mark.parametrize("case", CASES)
def test_a_longer_table_begins_with_the_shorter_one(case):
    """Positions alone decide, across the borders of the chunks in which tables are made."""
    rope = CASES[case][1]
    short, long = rope_table(rope, 8, MAX_POSITION, 4_096), rope_table(rope, 8, MAX_POSITION, 4_100)
    for part in (0, 1):
        np.testing.assert_array_equal(short[part], long[part][:4_096])
    assert np.isfinite(long[0]).all() and np.isfinite(long[1]).all()


def test_a_table_of_no_positions_is_empty():
    assert rope_table(RopeConfig(), 8, MAX_POSITION, 0)[0].shape == (0, 4)


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        (RopeConfig(), 1000),
        (RopeConfig(RopeKind.LLAMA3, factor=8.0, original_max_position=125), 1000),
        (RopeConfig(RopeKind.LINEAR, factor=2.5), 2500),
        (RopeConfig(RopeKind.DYNAMIC, factor=2.0), 2000),
        (RopeConfig(RopeKind.YARN, factor=4.0, original_max_position=1000), 4000),
        (RopeConfig(RopeKind.YARN, factor=4.0, original_max_position=250), 1000),
    ],
    ids=lambda value: getattr(value, "kind", value),
)
def test_the_context_limit_follows_the_kind(rope, limit):
    config = ModelConfig("llama", 8, 8, 8, 1, 1, 1, 8, 1e-6, 1000, DType.FLOAT32, rope)
    assert context_limit(config) == limit
