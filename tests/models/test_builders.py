"""The plain graph of each family gives the logits of transformers, for chains, trees, and what follows.

Run: pytest tests/models/test_builders.py
"""

import numpy as np
import pytest
import torch
from support.graphs import (
    bind_weights,
    empty_caches,
    hf_logits,
    hf_tensors,
    run_tree,
    tiny_config,
    tree_inputs,
)
from support.tiny_models import tiny_checkpoint

from tspec.checkpoint.hf_config import read_config
from tspec.core.errors import ConfigError
from tspec.core.tree import CandidateTrees, chain
from tspec.graph.check import check
from tspec.graph.passes import fuse
from tspec.models import build_graph, expected_tensors

TOLERANCE = 5e-5
"""Of logits that reach 16: float32 rounding in another order of summation."""
NUM_BLOCKS = 2
PROMPT = [int(token) for token in np.random.default_rng(1).integers(0, 97, 60)]
VOCAB = 97
GROUPS_OF_1 = {"heads": 3, "kv_heads": 3}
GROUPS_OF_3 = {"heads": 6, "kv_heads": 2}
GROUPS_OF_8 = {"heads": 8, "kv_heads": 1}

FAMILIES = {
    "llama": ("llama", GROUPS_OF_3),
    "llama with biases": ("llama", GROUPS_OF_1 | {"tie": True, "attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("llama", GROUPS_OF_8 | {"head_dim": 12}),
    "mistral": ("mistral", GROUPS_OF_3 | {"head_dim": 10}),
    "mistral with a window": ("mistral", GROUPS_OF_8 | {"head_dim": 8, "sliding_window": 17}),
    "qwen2": ("qwen2", GROUPS_OF_3 | {"tie": True}),
    "qwen2 with a window": (
        "qwen2",
        GROUPS_OF_1 | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", GROUPS_OF_3 | {"head_dim": 16, "tie": True}),
    "qwen3 with biases": ("qwen3", GROUPS_OF_1 | {"head_dim": 8, "attention_bias": True}),
}


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda name: name.replace(" ", "-"))
def tiny(request, tmp_path_factory):
    """A random model of transformers, and its configuration as tspec reads it."""
    architecture, settings = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("checkpoint")
    model = tiny_checkpoint(folder, architecture, hidden=48, intermediate=40, vocab=VOCAB, **settings)
    return model, read_config(folder)


@pytest.fixture
def model(tiny):
    return tiny[0]


@pytest.fixture
def config(tiny):
    return tiny[1]


@pytest.fixture
def prefilled(model, config):
    """The plain graph, the model's tensors, and what one chain over the prompt left."""
    graph = check(build_graph(config, with_logits=True))
    tensors = hf_tensors(model)
    inputs = tree_inputs(chain(np.array(PROMPT)), [0], num_blocks=NUM_BLOCKS)
    return graph, tensors, run_tree(graph, tensors, inputs, empty_caches(graph, NUM_BLOCKS))


def test_a_prefill_chain_gives_the_logits_of_transformers(model, prefilled):
    _, _, after = prefilled
    torch.testing.assert_close(after["logits"][0], hf_logits(model, PROMPT), rtol=0, atol=TOLERANCE)


def test_each_node_of_a_tree_gives_the_logits_of_its_path(model, prefilled):
    graph, tensors, after = prefilled
    caches = {name: value for name, value in after.items() if "cache" in name}
    tokens, parents = [5, 8, 3, 8, 90, 41, 2], [-1, 0, 0, 1, 1, 2, 5]
    trees = _one_tree(tokens, parents, width=9)
    inputs = tree_inputs(trees, [len(PROMPT)], num_blocks=NUM_BLOCKS)
    logits = run_tree(graph, tensors, inputs, caches)["logits"][0]
    for node in range(len(tokens)):
        expected = hf_logits(model, PROMPT + _path_tokens(tokens, parents, node))[-1]
        torch.testing.assert_close(logits[node], expected, rtol=0, atol=TOLERANCE)


def test_a_pass_after_an_accepted_branch_reads_the_committed_path(model, prefilled):
    """The target's own two next tokens sit behind wrong siblings, so that the commit has to move their KV."""
    graph, tensors, after = prefilled
    caches = {name: value for name, value in after.items() if "cache" in name}
    text = [*PROMPT, 5]
    for _ in range(3):
        text.append(int(hf_logits(model, text)[-1].argmax()))
    root, first, second, bonus = text[-4:]
    wrong = (first + 1) % VOCAB, (second + 1) % VOCAB
    trees = _one_tree([root, wrong[0], first, wrong[1], second], [-1, 0, 0, 2, 2], width=6)
    inputs = tree_inputs(trees, [len(PROMPT)], num_blocks=NUM_BLOCKS)
    after = run_tree(graph, tensors, inputs, caches)
    assert after["out_tokens"][0, :4].tolist() == [first, second, bonus, -1]
    assert after["num_out"].tolist() == [3]
    assert after["path"][0, :3].tolist() == [2, 4, -1]

    inputs = tree_inputs(chain(np.array([bonus])), [len(text) - 1], num_blocks=NUM_BLOCKS)
    caches = {name: value for name, value in after.items() if "cache" in name}
    logits = run_tree(graph, tensors, inputs, caches)["logits"][0]
    torch.testing.assert_close(logits, hf_logits(model, text)[-1:], rtol=0, atol=TOLERANCE)


def test_rows_of_a_fused_batch_do_not_see_each_other(model, config):
    plain = build_graph(config, head="last", with_logits=True)
    tensors = hf_tensors(model)
    tokens = np.zeros((2, 11), np.int32)
    prompts = [PROMPT[:11], PROMPT[20:27]]
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    parents = np.tile(np.arange(-1, 10, dtype=np.int32), (2, 1))
    trees = CandidateTrees(tokens, parents, np.array([11, 7], np.int32))
    inputs = tree_inputs(trees, [0, 0], num_blocks=NUM_BLOCKS)
    after = run_tree(fuse(plain), tensors, inputs, empty_caches(plain, NUM_BLOCKS))
    for row, prompt in enumerate(prompts):
        expected = hf_logits(model, prompt)[-1]
        torch.testing.assert_close(after["logits"][row, 0], expected, rtol=0, atol=TOLERANCE)
        assert after["node_tokens"][row, 0] == expected.argmax()


def test_expected_tensors_are_those_of_the_checkpoint(model, config):
    expected = expected_tensors(build_graph(config))
    found = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        found.pop("lm_head.weight", None)
    assert expected == found


def test_an_unknown_architecture_names_the_known_ones():
    with pytest.raises(ConfigError, match="got 'gpt2', need one of llama, mistral, qwen2, qwen3"):
        build_graph(tiny_config("gpt2"))


def test_an_unknown_head_names_the_known_ones():
    with pytest.raises(ConfigError, match="head: got 'first', need one of all, ratio, last, prompt, none"):
        build_graph(tiny_config(), head="first")


def test_a_graph_without_a_head_writes_the_same_keys_and_values():
    config = tiny_config("qwen3", has_qk_norm=True)
    every, none = (fuse(build_graph(config, head=head)) for head in ("last", "none"))
    assert none.outputs == ()
    assert [op.kind for op in none.each("rope_kv_write")] == [op.kind for op in every.each("rope_kv_write")]
    assert none.ops == every.ops[: len(none.ops)]


def test_bound_weights_cover_a_fused_graph(model, config):
    tensors = hf_tensors(model)
    plain = build_graph(config)
    assert sum(map(_size, bind_weights(fuse(plain), tensors).values())) == sum(
        map(_size, bind_weights(plain, tensors).values())
    )


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel()


def _one_tree(tokens: list[int], parents: list[int], width: int) -> CandidateTrees:
    padding = width - len(tokens)
    return CandidateTrees(
        np.array([tokens + [0] * padding], np.int32),
        np.array([parents + [-1] * padding], np.int32),
        np.array([len(tokens)], np.int32),
    )


def _path_tokens(tokens: list[int], parents: list[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, tokens[node])
        node = parents[node]
    return path
