"""A whole round of a proposer's model on the cuda lowering gives what the references give, padding and all.

The graphs are those of the engine: the chain is taken in, then a tree grows level by level, in one plan.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_draft_rounds.py
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.device_pass import bind_case, hold
from support.kernel_case import Maker
from support.round_cases import TARGET, draft_model, eagle, medusa_case, round_case
from support.tolerance import TOLERANCES

from tspec.core.dtypes import DType
from tspec.core.head_config import MedusaConfig
from tspec.core.sampling import NO_TOKEN

TOLERANCE = TOLERANCES["round", DType.FLOAT32]

MODELS = {
    "llama": draft_model,
    "qwen3": partial(draft_model, "qwen3", has_qk_norm=True, tie_word_embeddings=True),
    "mistral": partial(draft_model, "mistral", num_layers=2, sliding_windows=(9, None)),
    "eagle1": partial(eagle, 1, fc_bias=True, has_embedding_norm=True, has_hidden_norm=True),
    "eagle3": partial(eagle, 3, draft_vocab_size=97, fc_norm=True, norm_output=True),
}
ROUNDS = (
    ("llama", 3, 3, "top"),
    ("qwen3", 2, 10, "top"),
    ("mistral", 4, 3, "top"),
    ("eagle1", 3, 1, "ratio"),
    ("eagle3", 3, 3, "top"),
    ("llama", 2, 1, "match"),
)


@pytest.mark.parametrize(("name", "depth", "width", "draws"), ROUNDS, ids=str)
def test_a_round_gives_what_the_references_give(name, depth, width, draws):
    case = round_case(Maker(f"{name} {depth}x{width} {draws}"), MODELS[name](), depth, width, draws)
    found = hold(case, TOLERANCE)
    assert (found[f"level{depth - 1}.tokens"][0, 0] != NO_TOKEN).all()


def test_heads_without_a_cache_give_what_the_references_give():
    config = MedusaConfig(2, 1, TARGET.hidden_size, TARGET.vocab_size, True, draft_vocab_size=97)
    hold(medusa_case(Maker("medusa"), config, 2, 3), TOLERANCE)


def test_a_chain_is_taken_in_without_a_tree():
    hold(round_case(Maker("chunk"), MODELS["eagle1"](), 0, 1), TOLERANCE)


def test_a_sequence_has_the_same_tree_alone_and_among_others():
    """Bit by bit; the others have no nodes then."""
    case = round_case(Maker("a batch"), MODELS["llama"](), 2, 3)
    together = bind_case(case).run()
    is_mine = torch.arange(4).numpy() == 3
    counts = {name: case.inputs[name] * is_mine for name in ("num_nodes", "level_nodes")}
    alone = bind_case(replace(case, inputs=case.inputs | counts)).run()
    for name in case.graph.outputs:
        mine, among = alone[name.name][3], together[name.name][3]
        assert torch.equal(mine.view(torch.int32), among.view(torch.int32)), name
