"""Models that draw their candidates keep the law of the target's texts, from their own programs to committed tokens.

The target is a small llama whose law is computed by transformers. Each case draws 2,500 texts of three tokens, the
first ones of longer texts, so that rounds have whole chains. The bound is that of support/text_law.py, which allows
1e-6 of false alarms to all tests of laws together, over the choice of their seeds; a planted fault has to exceed it.

Run: pytest tests/property/test_draft_statistics.py
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.draft_worlds import noisy_copy
from support.engines import build, finish, with_room
from support.head_checkpoints import write_speculators
from support.text_law import ALARM, assert_law, surprise
from support.tiny_heads import tiny_eagle
from support.tiny_models import tiny_checkpoint

from tspec.build import load_config
from tspec.core.sampling_params import SamplingParams

VOCAB, LENGTH, TEXTS, ROWS, MAX_TOKENS = 5, 3, 2500, 64, 7
TEMPERATURE, PROMPT = 2.0, [3, 1, 4]
SMALL = {"hidden": 32, "layers": 1, "vocab": VOCAB}

CASES = {
    "a draft model, ratio": ("noisy", "ratio"),
    "a draft model that knows fewer tokens": ("narrow", "auto"),
    "an EAGLE-3 head that knows fewer tokens": ("eagle3", "auto"),
    "a draft model, coupled": ("noisy", "match"),
    "lookups beside a draft model, ratio": ("noisy", "ratio", "union"),
    "lookups beside an EAGLE-3 head, weighed": ("eagle3", "auto", "auto"),
}


def write_tokens(folder, count=VOCAB):
    """A tokenizer of single letters, which says that vocabularies of other sizes mean the same."""
    vocabulary = {chr(97 + token): token for token in range(count)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("law")
    found = {name: folder / name for name in ("target", "noisy", "narrow", "eagle3")}
    model = tiny_checkpoint(found["target"], "llama", **SMALL)
    noisy_copy(model, found["noisy"], 0.3)
    tiny_checkpoint(found["narrow"], "llama", **SMALL | {"vocab": VOCAB - 2})
    head = tiny_eagle(load_config(found["target"]), 3, aux=(0, 0, 1), draft_ids=(0, 2, 3))
    write_speculators(found["eagle3"], head)
    for name in ("target", "noisy"):
        write_tokens(found[name])
    write_tokens(found["narrow"], VOCAB - 2)
    found["model"] = model
    return found


@pytest.fixture(scope="module")
def law(folders):
    return text_law(folders["model"], LENGTH)


def text_law(model, length):
    """The joint law of so many tokens behind the prompt: [V] * length."""
    law = torch.ones(1, dtype=torch.float64)
    texts = torch.tensor([PROMPT])
    for _ in range(length):
        with torch.no_grad():
            after = (model(texts).logits[:, -1].double() / TEMPERATURE).softmax(-1)
        law = (law[:, None] * after).flatten()
        texts = torch.cat(
            [texts.repeat_interleave(VOCAB, 0), torch.arange(VOCAB).repeat(len(texts))[:, None]], 1
        )
    return law.numpy().reshape((VOCAB,) * length)


def engine_of(folders, draft, acceptance, method=None, **options):
    method = method or ("eagle3" if draft == "eagle3" else "draft_model")
    config = {"method": method, "model": folders[draft], "acceptance": acceptance} | options
    config |= {"num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}
    return build(folders["target"], config, max_model_len=32, max_num_seqs=ROWS)


def texts_of(built):
    """The first tokens of texts with seeds of their own, and the share of candidates that was accepted."""
    engine = with_room(built, max_num_seqs=ROWS, node_budget=8 * ROWS)
    sampled = [
        engine.add(PROMPT, SamplingParams(max_tokens=MAX_TOKENS, temperature=TEMPERATURE, seed=seed))
        for seed in range(TEXTS)
    ]
    finish(engine)
    assert {each.error for each in sampled} == {None}
    rate = sum(each.stats.num_accepted for each in sampled) / sum(
        each.stats.num_candidates for each in sampled
    )
    return np.array([each.output_ids[:LENGTH] for each in sampled]), rate


@pytest.mark.parametrize("case", CASES)
def test_texts_follow_the_law_of_the_target(folders, law, case):
    engine = engine_of(folders, *CASES[case])
    texts, rate = texts_of(engine)
    engine.close()
    assert 0.05 < rate < 0.95
    assert_law(texts, law)


class Liar:
    """Says that its candidates were drawn from another law."""

    def __init__(self, model, change):
        self.model = model
        self.change = change

    def __getattr__(self, name):
        return getattr(self.model, name)

    def propose(self, batch):
        trees = self.model.propose(batch)
        if trees.draft_logprobs is None:
            return trees
        return replace(trees, draft_logprobs=self.change(trees.draft_logprobs).astype(np.float32))


def sharper(logprobs):
    """That of half the temperature."""
    return torch.from_numpy(2 * logprobs.astype(np.float64)).log_softmax(-1).numpy()


def shifted(logprobs):
    """That of the token before."""
    return np.roll(logprobs, 1, axis=-1)


@pytest.mark.parametrize(("draft", "change"), [("noisy", sharper), ("eagle3", shifted)])
def test_a_draft_that_lies_about_its_law_is_caught(folders, law, draft, change):
    engine = engine_of(folders, draft, "ratio")
    engine.proposer = Liar(engine.proposer, change)
    texts, _ = texts_of(engine)
    engine.close()
    assert surprise(texts, law) > ALARM
