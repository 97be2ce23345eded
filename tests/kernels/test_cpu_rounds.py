"""A whole round of a proposer's model on the CPU gives what the references give: tokens, scores, laws, caches.

Run: pytest tests/kernels/test_cpu_rounds.py
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.cpu_pass import run_on_cpu
from support.kernel_case import Maker
from support.kernel_cases import hold_against_reference
from support.round_cases import TARGET, draft_model, eagle, medusa_case, round_case

from tspec.core.dtypes import DType
from tspec.core.head_config import MedusaConfig
from tspec.core.sampling import NO_TOKEN

MODELS = {
    "llama": draft_model,
    "qwen3": partial(draft_model, "qwen3", has_qk_norm=True, tie_word_embeddings=True),
    "mistral": partial(draft_model, "mistral", num_layers=2, sliding_windows=(9, None)),
    "eagle1": partial(eagle, 1),
    "eagle1 with biases and norms": partial(
        eagle, 1, fc_bias=True, has_embedding_norm=True, has_hidden_norm=True, has_final_norm=True
    ),
    "eagle3": partial(eagle, 3, draft_vocab_size=97),
    "eagle3 of two layers": partial(
        eagle, 3, num_layers=2, fc_norm=True, norm_before_residual=True, norm_output=True
    ),
}
SHAPES = ((1, 1, "top"), (5, 1, "top"), (4, 3, "top"), (3, 10, "top"), (4, 1, "match"), (4, 1, "ratio"))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("depth", "width", "draws"), SHAPES, ids=[f"{depth}x{width}-{draws}" for depth, width, draws in SHAPES]
)
def test_a_round_gives_what_the_references_give(name, depth, width, draws):
    case = round_case(Maker(f"{name} {depth}x{width} {draws}"), MODELS[name](), depth, width, draws)
    hold_against_reference(case, "round", DType.FLOAT32)
    found = run_on_cpu(case)
    last = found[f"level{depth - 1}.tokens"]
    assert (last[0, 0] != NO_TOKEN).all()
    assert torch.isfinite(found[f"level{depth - 1}.scores"][0]).all()


@pytest.mark.parametrize("width", [1, 3, 10])
@pytest.mark.parametrize("num_layers", [0, 2])
def test_heads_without_a_cache_give_what_the_references_give(width, num_layers):
    config = MedusaConfig(3, num_layers, TARGET.hidden_size, TARGET.vocab_size, True, draft_vocab_size=97)
    hold_against_reference(medusa_case(Maker(f"{width}"), config, 3, width), "round", DType.FLOAT32)


def test_a_sequence_has_the_same_tree_alone_and_among_others():
    """Bit by bit; the others have no nodes then, before it and behind it."""
    case = round_case(Maker("a batch"), draft_model(), 4, 3)
    together = run_on_cpu(case, num_threads=3)
    for row, count in enumerate(case.inputs["level_nodes"].tolist()):
        is_mine = np.arange(len(case.inputs["num_nodes"])) == row
        counts = {name: case.inputs[name] * is_mine for name in ("num_nodes", "level_nodes")}
        alone = run_on_cpu(replace(case, inputs=case.inputs | counts))
        for name in ("level3.tokens", "level3.scores", "level3.next_from"):
            mine, among = alone[name][row, :count], together[name][row, :count]
            assert torch.equal(mine.view(torch.int32), among.view(torch.int32)), name
