"""The demo model with models as proposers: a draft of its own first layers, itself, and a random EAGLE-3 head.

Greedy texts, and those of a seed, are plain decoding's; a draft that is the target is right about everything.

Run: pytest -m slow tests/golden/test_real_drafts.py
"""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import edit_json
from support.head_checkpoints import write_sglang
from support.tiny_heads import frequent_ids, tiny_eagle

from tspec import LLM, SamplingParams
from tspec.build import load_config
from tspec.checkpoint.demo_model import ensure_demo_model

pytestmark = pytest.mark.slow

NUM_TOKENS, DRAFT_LAYERS, KNOWN_IDS = 32, 6, 8000
CHATS = (
    "Who wrote Hamlet?",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "List ten animals that live in the sea, one a line.",
)
TEXTS = ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,", "Zażółć gęślą jaźń. Ünïcödé: 日本語, Ελληνικά, 🙂")
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8, top_p=0.95, seed=7)

DRAFTS = {
    "first layers, chain": ("first layers", {"method": "draft_model", "num_speculative_tokens": 4}),
    "first layers, tree": (
        "first layers",
        {"method": "draft_model", "num_speculative_tokens": 7, "draft_top_k": 2, "draft_depth": 3},
    ),
    "first layers, coupled": (
        "first layers",
        {"method": "draft_model", "draft_sample_method": "probabilistic", "acceptance": "match"},
    ),
    "itself": ("itself", {"method": "draft_model", "num_speculative_tokens": 3}),
    "eagle3, tree": (
        "eagle3",
        {"method": "eagle3", "num_speculative_tokens": 7, "draft_top_k": 2, "draft_depth": 3},
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    target, folder = ensure_demo_model(), tmp_path_factory.mktemp("drafts")
    config = load_config(target)
    ids = frequent_ids(config.vocab_size, KNOWN_IDS)
    sizes = {"heads": 9, "kv_heads": 3, "head_dim": 64, "intermediate": 1536, "rope_base": 100000.0}
    head = tiny_eagle(config, 3, draft_ids=ids, dtype=torch.bfloat16, **sizes)
    return {
        "itself": target,
        "first layers": first_layers(target, folder / "first"),
        "eagle3": write_sglang(folder / "eagle3", head),
    }


def first_layers(target, folder):
    """A checkpoint of the target's first layers, with its embedding, norm, head and tokenizer."""
    shutil.copytree(target, folder)
    edit_json(folder / "config.json", num_hidden_layers=DRAFT_LAYERS)
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        kept = {name: value for name, value in tensors.items() if layer_of(name) < DRAFT_LAYERS}
        save_file(kept, file, metadata={"format": "pt"})
    return folder


def layer_of(name):
    parts = name.split(".")
    return int(parts[2]) if parts[1] == "layers" else -1


def decoded(folders, speculative):
    """Results of all prompts, greedy and with a seed, two at a time."""
    with LLM(folders["itself"], speculative_config=speculative, max_model_len=512, max_num_seqs=2) as llm:
        prompts = [llm.encode_chat([{"role": "user", "content": chat}]) for chat in CHATS]
        return [llm.generate([*prompts, *TEXTS], params) for params in (GREEDY, SEEDED)]


@pytest.fixture(scope="module")
def plain(folders):
    return decoded(folders, {"method": "none"})


@pytest.mark.parametrize("name", DRAFTS)
def test_no_proposer_changes_a_token(folders, plain, name):
    draft, config = DRAFTS[name]
    found = decoded(folders, config | {"model": folders[draft]})
    for results, wanted in zip(found, plain, strict=True):
        assert [each.token_ids for each in results] == [each.token_ids for each in wanted]
        assert {len(each.token_ids) for each in results} == {NUM_TOKENS}
        assert all(each.stats.num_candidates > NUM_TOKENS / 4 for each in results)
    if draft == "itself":
        assert all(each.stats.num_accepted == each.stats.num_candidates for each in found[0])
    if name == "first layers, coupled":
        assert sum(each.stats.num_accepted for each in found[1]) > 0
