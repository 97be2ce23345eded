"""The cuda lowering gives the logits of transformers: for a prompt, and at each node of a tree; and its verdict.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_against_transformers.py
"""

import numpy as np
import pytest
from support.graphs import hf_logits
from support.interpreted import device_executor
from support.tiny_models import tiny_checkpoint
from support.tolerance import TOLERANCES

from tspec.core.dtypes import DType
from tspec.core.tree import CandidateTrees
from tspec.graph.plan import Bucket
from tspec.runtime.inputs import PassInputs

VOCAB = 64
PROMPT = [5, 9, 33, 9, 5, 61, 2]
PARENTS = [-1, 0, 0, 2, 2, 1, 3]
"""Two children of the root, and a grandchild below the wrong one; two children of the right one, and one of its own."""
TABLE = np.array([[5, 2]], np.int32)
SHAPES = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "qwen2": {"heads": 4, "kv_heads": 4},
    "qwen3": {"head_dim": 24},
}


@pytest.fixture(scope="module", params=SHAPES)
def saved(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    shape = {"hidden": 32, "heads": 4, "kv_heads": 1, "intermediate": 40, "vocab": VOCAB}
    model = tiny_checkpoint(folder, request.param, **shape | SHAPES[request.param])
    return model, device_executor(folder)


def run(executor, tokens, parents, prefix_len):
    count = len(tokens)
    trees = CandidateTrees(
        np.array([tokens], np.int32), np.array([parents], np.int32), np.array([count], np.int32)
    )
    inputs = PassInputs(trees, np.array([prefix_len], np.int32), TABLE)
    outputs = executor.run("logits", Bucket(2, 8), inputs)
    return {name: array[0].copy() for name, array in outputs.items()}


def assert_near(found, expected):
    assert 1 < np.abs(expected).max() < 100, "logits of a size for which the tolerance was chosen"
    assert np.abs(found - expected).max() <= TOLERANCES["logits", DType.FLOAT32].absolute


def paths_of(tokens):
    """Tokens from the root's first child to each node."""
    paths = [[]]
    for token, parent in zip(tokens[1:], PARENTS[1:], strict=True):
        paths.append([*paths[parent], token])
    return paths


def test_a_prompt_and_each_node_of_a_tree_have_the_logits_of_transformers(saved):
    model, executor = saved
    first = run(executor, PROMPT, range(-1, len(PROMPT) - 1), 0)
    assert_near(first["logits"][: len(PROMPT)], hf_logits(model, PROMPT).numpy())
    right = int(hf_logits(model, PROMPT)[-1].argmax())
    after = int(hf_logits(model, [*PROMPT, right])[-1].argmax())
    last = int(hf_logits(model, [*PROMPT, right, after])[-1].argmax())
    wrong, other = (right + 1) % VOCAB, (after + 1) % VOCAB
    tokens = [PROMPT[-1], wrong, right, after, other, 7, (last + 1) % VOCAB]
    found = run(executor, tokens, PARENTS, len(PROMPT) - 1)
    for node, path in enumerate(paths_of(tokens)):
        assert_near(found["logits"][node], hf_logits(model, [*PROMPT, *path])[-1].numpy())
    assert found["num_out"] == 3
    assert found["out_tokens"][:3].tolist() == [right, after, last]
    assert found["path"][:2].tolist() == [2, 3]
    following = run(executor, [last], [-1], len(PROMPT) + 2)
    text = [*PROMPT, right, after, last]
    assert_near(following["logits"][0], hf_logits(model, text)[-1].numpy())
