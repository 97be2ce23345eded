"""The EAGLE head that ships with the project: it loads, changes no text, and gives more than a token a pass.

Run: pytest -m slow tests/golden/test_shipped_head.py
"""

import pytest
from support.sources import ROOT

from tspec import LLM, SamplingParams
from tspec.build import load_config
from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.checkpoint.heads import open_head

pytestmark = pytest.mark.slow

HEAD = ROOT / "assets" / "smollm2-135m-eagle3"
CHATS = (
    "Explain why the sky is blue.",
    "A train travels 60 miles in 1.5 hours. How far does it travel in 4 hours?",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
)
MAX_BYTES = 12 * 10**6


def decoded(speculative):
    """Results of all chats, greedy and with a seed."""
    with LLM(ensure_demo_model(), speculative_config=speculative, max_model_len=512, max_num_seqs=2) as llm:
        prompts = [llm.encode_chat([{"role": "user", "content": chat}]) for chat in CHATS]
        greedy = SamplingParams(max_tokens=64)
        seeded = SamplingParams(max_tokens=64, temperature=0.8, seed=7)
        return [llm.generate(prompts, params) for params in (greedy, seeded)]


@pytest.fixture(scope="module")
def plain():
    return decoded({"method": "none"})


def test_it_is_a_small_head_of_the_demo_model():
    head = open_head(HEAD, load_config(ensure_demo_model()))
    assert head.config.draft_vocab_size == 4096
    assert (HEAD / "model.safetensors").stat().st_size < MAX_BYTES


@pytest.mark.parametrize(
    "config",
    [{"method": "eagle3"}, {"method": "eagle3", "draft_top_k": 4}, {"method": "auto", "draft_top_k": 4}],
    ids=["chain", "tree", "auto"],
)
def test_it_changes_no_text_and_is_often_right(plain, config):
    found = decoded(config | {"model": HEAD})
    for results, wanted in zip(found, plain, strict=True):
        assert [each.token_ids for each in results] == [each.token_ids for each in wanted]
    if config["method"] == "eagle3":
        tokens, passes = (
            sum(getattr(each.stats, name) for each in found[0]) for name in ("num_emitted", "num_passes")
        )
        assert tokens / passes > 1.3
