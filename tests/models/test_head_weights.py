"""The graphs of heads read exactly the tensors that a head's checkpoint is checked for, in their shapes.

Run: pytest tests/models/test_head_weights.py
"""

import pytest
from support.head_cases import TARGET
from support.head_checkpoints import write_authors, write_medusa, write_speculators, write_vllm_medusa
from support.tiny_heads import frequent_ids, tiny_eagle, tiny_medusa

from tspec.checkpoint.heads import open_head
from tspec.models import expected_tensors
from tspec.models.draft import build_draft
from tspec.models.eagle import OF_TARGET, eagle_parts
from tspec.models.medusa import build_medusa

IDS = frequent_ids(60, 25)
HEADS = {
    "eagle1": (1, {}),
    "eagle1 with bias": (1, {"fc_bias": True, "own_embedding": True}),
    "eagle1 with norms before fc": (1, {"para_norm": True}),
    "eagle1 with extra norms": (1, {"extra_norms": True}),
    "eagle3": (3, {"draft_ids": IDS}),
    "eagle3 with norms": (3, {"fc_norm": True, "norm_before_fc": True, "norm_output": True}),
    "eagle3 with biases": (3, {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "fc_bias": True}),
    "eagle3 of qwen3, two layers": (3, {"qk_norm": True, "layers": 2, "norm_before_residual": True}),
    "smaller eagle3": (3, {"hidden": 16, "aux": (1, 4, 9, 12)}),
}
MAPS = {"d2t", "token_map"}


@pytest.mark.parametrize("name", HEADS)
def test_eagle_reads_all_of_its_tensors_and_no_others(tmp_path, name):
    version, changes = HEADS[name]
    write = write_authors if name == "eagle1 with norms before fc" else write_speculators
    head = open_head(write(tmp_path, tiny_eagle(TARGET, version, **changes)), TARGET)
    read = expected_tensors(build_draft(eagle_parts(head.config, TARGET), depth=2, width=2))
    own = {name: shape for name, shape in read.items() if not name.startswith(OF_TARGET)}
    assert own == {name: shape for name, shape in head.shapes.items() if name not in MAPS}
    of_target = {name.removeprefix(OF_TARGET) for name in set(read) - set(own)}
    borrowed = {
        "model.embed_tokens.weight": not head.config.has_own_embedding,
        "lm_head.weight": version == 1,
    }
    assert of_target == {name for name, is_read in borrowed.items() if is_read}


@pytest.mark.parametrize(
    ("write", "changes"),
    [
        (write_medusa, {}),
        (write_medusa, {"has_bias": False, "blocks": 2}),
        (write_vllm_medusa, {"has_bias": False, "blocks": 2}),
        (write_vllm_medusa, {"shares_head": True}),
        (write_vllm_medusa, {"draft_ids": IDS}),
    ],
)
def test_medusa_reads_all_of_its_tensors_and_no_others(tmp_path, write, changes):
    head = open_head(write(tmp_path, tiny_medusa(TARGET, **changes)), TARGET)
    read = expected_tensors(
        build_medusa(head.config, depth=head.config.num_heads, width=2, dtype=head.config.dtype)
    )
    assert read == {name: shape for name, shape in head.shapes.items() if name not in MAPS}
