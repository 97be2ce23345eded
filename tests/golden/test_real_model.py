"""The demo model in float32 says what transformers says, over 128 greedy tokens of each prompt.

Run: pytest -m slow tests/golden/test_real_model.py
"""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tspec import LLM, SamplingParams
from tspec.checkpoint.demo_model import ensure_demo_model

pytestmark = [pytest.mark.golden, pytest.mark.slow]

NUM_TOKENS = 128
TIE = 1e-4
"""Two logits this close may change places by rounding alone."""

CHATS = (
    "Who wrote Hamlet?",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Summarise in two sentences: The tortoise walked slowly but steadily, while the hare slept under a tree. "
    "When the hare woke up, the tortoise had already crossed the finish line.",
    "List ten animals that live in the sea, one a line.",
    "Translate to French: Where is the station?",
    "A train goes 60 km in 45 minutes. How fast is it in km/h? Think step by step.",
)
TEXTS = (
    "Once upon a time",
    "def quicksort(items):\n    ",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "Zażółć gęślą jaźń. Ünïcödé: 日本語, Ελληνικά, 🙂",
)


@pytest.fixture(scope="module")
def folder():
    return ensure_demo_model()


@pytest.fixture(scope="module")
def reference(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


@pytest.fixture(scope="module")
def results(folder):
    """Each prompt decoded plain, and with n-gram speculation."""
    found = {}
    for method in ("none", "ngram"):
        with LLM(folder, dtype="float32", speculative_config={"method": method}, max_model_len=1024) as llm:
            prompts = [llm.encode_chat([{"role": "user", "content": chat}]) for chat in CHATS]
            found[method] = llm.generate(
                [*prompts, *TEXTS], SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
            )
    return found


@pytest.mark.parametrize("number", range(len(CHATS) + len(TEXTS)))
def test_each_token_is_the_one_that_transformers_picks(reference, results, number):
    """transformers reads the whole text at once: where it would go on otherwise, its two best logits are tied."""
    result = results["none"][number]
    prompt, tokens = result.prompt_token_ids, result.token_ids
    assert len(tokens) == NUM_TOKENS
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    for place in (logits.argmax(-1) != torch.tensor(tokens)).nonzero().flatten().tolist():
        gap = float(logits[place].max() - logits[place, tokens[place]])
        print(f"prompt {number}, token {place}: {gap:.1e} below the best logit of transformers")
        assert gap <= TIE


def test_speculation_changes_no_token_and_saves_passes(results):
    assert [each.token_ids for each in results["ngram"]] == [each.token_ids for each in results["none"]]
    passes = {method: sum(each.stats.num_passes for each in found) for method, found in results.items()}
    assert passes["ngram"] < passes["none"]
