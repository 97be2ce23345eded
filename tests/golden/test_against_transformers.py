"""Compiled models give the logits and the greedy tokens of transformers, plain and with n-gram speculation.

Run: pytest tests/golden/test_against_transformers.py
"""

from typing import Any

import numpy as np
import pytest
import torch
from support.compiled_target import CompiledTarget
from support.graphs import hf_logits
from support.tiny_models import tiny_checkpoint
from support.tolerance import TOLERANCES

from tspec import LLM, SamplingParams
from tspec.core.dtypes import DType

pytestmark = pytest.mark.golden

VOCAB = 97
TEXT = [int(token) for token in np.random.default_rng(1).integers(0, VOCAB, 180)]
PROMPTS = [TEXT[:40], TEXT[50:57], TEXT[60:61] * 3, TEXT[:70]]
NUM_TOKENS = 64
GROUPS_OF_1 = {"heads": 3, "kv_heads": 3}
GROUPS_OF_3 = {"heads": 6, "kv_heads": 2}
GROUPS_OF_8 = {"heads": 8, "kv_heads": 1}


def rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


LLAMA3 = rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
SHAPES = {
    "llama": ("llama", GROUPS_OF_3),
    "llama with biases": ("llama", GROUPS_OF_1 | {"tie": True, "attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("llama", GROUPS_OF_8 | {"head_dim": 56}),
    "llama in shards": ("llama", GROUPS_OF_3 | {"max_shard_bytes": 20_000}),
    "llama with llama3 rope": ("llama", GROUPS_OF_3 | {"head_dim": 24} | LLAMA3),
    "llama with yarn": (
        "llama", GROUPS_OF_3 | rope("yarn", factor=4.0, original_max_position_embeddings=64),
    ),
    "llama with linear rope": ("llama", GROUPS_OF_3 | rope("linear", factor=3.0)),
    "mistral": ("mistral", GROUPS_OF_3 | {"head_dim": 24}),
    "mistral with a window": ("mistral", GROUPS_OF_8 | {"head_dim": 8, "sliding_window": 17}),
    "mistral with a wide window": ("mistral", GROUPS_OF_1 | {"sliding_window": 90}),
    "qwen2": ("qwen2", GROUPS_OF_3 | {"tie": True}),
    "qwen2 with a window": (
        "qwen2", GROUPS_OF_1 | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen2 without its window": (
        "qwen2", GROUPS_OF_8 | {"use_sliding_window": False, "sliding_window": 9, "max_window_layers": 0},
    ),
    "qwen3": ("qwen3", GROUPS_OF_3 | {"head_dim": 24, "tie": True}),
    "qwen3 with biases": ("qwen3", GROUPS_OF_8 | {"head_dim": 24, "attention_bias": True}),
    "qwen3 in shards": ("qwen3", GROUPS_OF_1 | {"max_shard_bytes": 20_000}),
}  # fmt: skip


@pytest.fixture(scope="module", params=SHAPES, ids=lambda name: name.replace(" ", "-"))
def saved(request, tmp_path_factory):
    """A model of transformers and its folder. Weights are halved: logits then reach 10, and winners stay clear."""
    architecture, settings = SHAPES[request.param]
    folder = tmp_path_factory.mktemp("checkpoint")
    shape = {"hidden": 48, "intermediate": 40, "vocab": VOCAB} | settings
    model = tiny_checkpoint(folder, architecture, **shape)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.5)
    shards = {"max_shard_size": shape["max_shard_bytes"]} if "max_shard_bytes" in shape else {}
    model.save_pretrained(folder, **shards)
    return model, folder


def test_logits_are_those_of_transformers(saved):
    model, folder = saved
    target = CompiledTarget(folder)
    found = target.ingest(TEXT, chunk=64)
    target.close()
    expected = hf_logits(model, TEXT).numpy()
    assert 1 < np.abs(expected).max() < 12
    assert np.abs(found - expected).max() <= TOLERANCES["logits", DType.FLOAT32].absolute


@pytest.mark.parametrize("method", ["none", "ngram"])
def test_greedy_tokens_are_those_of_transformers(saved, method):
    model, folder = saved
    config = {"method": method} if method == "none" else {"method": method, "prompt_lookup_min": 1}
    with LLM(folder, speculative_config=config, num_threads=1, max_num_seqs=1) as llm:
        results = llm.generate(PROMPTS, SamplingParams(max_tokens=NUM_TOKENS))
    expected = [generate(model, prompt) for prompt in PROMPTS]
    assert [result.token_ids for result in results] == expected
    judged = sum(result.stats.num_candidates for result in results)
    assert (judged > 0) == (method == "ngram")


def generate(model, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    return output[0, len(prompt) :].tolist()
