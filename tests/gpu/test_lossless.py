"""Decoding with n-gram lookup and with random trees gives the tokens of plain decoding, greedy and sampled.

Run: pytest tests/gpu/test_lossless.py -m gpu
"""

import pytest
from support.device_decoding import make_engine, repeating, run_engine
from support.engines import RandomTrees

from tspec.core.dtypes import DType
from tspec.core.speculative_config import SpeculativeConfig
from tspec.proposers.ngram import NgramProposer

pytestmark = pytest.mark.gpu

TINY = {
    "llama": {},
    "tied in float16": {"dtype": "float16", "num_layers": 2},
    "qwen2": {"architecture": "qwen2", "has_qkv_bias": True, "tie_word_embeddings": False},
    "qwen3": {"architecture": "qwen3", "has_qk_norm": True, "num_heads": 4, "num_kv_heads": 2},
    "mistral": {"architecture": "mistral", "sliding_windows": (9,)},
}

ASKED = {
    "sampled": {"temperature": 3.0, "seed": 7},
    "limits": {"temperature": 3.0, "seed": 8, "top_k": 200, "top_p": 0.95},
    "edits": {"temperature": 2.0, "seed": 9, "repetition_penalty": 1.2, "logit_bias": {3: 5.0}},
}

EVERYTHING = {
    "temperature": 2.0,
    "seed": 10,
    "top_k": 40,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.3,
    "bad_words": [[5], *([token, (7 * token + step) % 64] for token in range(64) for step in range(20))],
    "logprobs": 5,
}
"""After each token of a tiny model's 64 a third of them is forbidden."""


def decode(model, prompts, max_tokens, speculative, num_candidates=7, **asked):
    proposer = NgramProposer(SpeculativeConfig(num_speculative_tokens=num_candidates))
    proposer.warm_up()
    engine = make_engine(model, proposer, num_candidates)
    return run_engine(engine, prompts, max_tokens, speculative, **asked)


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_decodes_the_same_with_n_gram(make_tiny, is_small, name):
    changes = dict(TINY[name])
    if "dtype" in changes:
        changes["dtype"] = DType(changes["dtype"])
    model = make_tiny(**changes)
    prompts = [repeating(model.config, 30, 0)]
    count = 8 if is_small else 100
    plain, fast = (decode(model, prompts, count, speculative)[0] for speculative in ("off", "auto"))
    assert fast.output_ids == plain.output_ids
    assert fast.stats.num_candidates > 0
    model.executor.close()


@pytest.mark.parametrize("num_candidates", [3, 15, 63])
def test_a_medium_model_decodes_the_same_with_n_gram_alone_and_in_a_batch(medium, is_small, num_candidates):
    if is_small and num_candidates != 3:
        pytest.skip("more than the interpreter runs in a blink")
    lengths = (20, 9) if is_small else (20, 9, 130, 300)
    prompts = [repeating(medium.config, length, length) for length in lengths]
    count = 4 if is_small else 200
    alone = [decode(medium, [prompt], count, "off")[0].output_ids for prompt in prompts]
    together = decode(medium, prompts, count, "auto", num_candidates)
    assert [sequence.output_ids for sequence in together] == alone


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_medium_model_samples_the_same_with_n_gram_alone_and_in_a_batch(medium, is_small, asked):
    """The head's weights are wide: at a high temperature several tokens have a chance."""
    if is_small and asked is not ASKED["sampled"]:
        pytest.skip("more than the interpreter runs in a blink")
    lengths = (20, 9) if is_small else (20, 9, 130, 300)
    prompts = [repeating(medium.config, length, length) for length in lengths]
    count = 4 if is_small else 150
    alone = [decode(medium, [prompt], count, "off", **asked)[0].output_ids for prompt in prompts]
    together = decode(medium, prompts, count, "auto", 3 if is_small else 15, **asked)
    assert [sequence.output_ids for sequence in together] == alone
    assert alone != [decode(medium, [prompt], count, "off")[0].output_ids for prompt in prompts]


def test_random_trees_leave_texts_and_logprobs_as_they_are_with_every_edit(make_tiny, is_small):
    """Siblings and the same token in several branches: what a bad word forbids depends on each node's path."""
    model = make_tiny(num_layers=2, dtype=DType.FLOAT32)
    prompts = [repeating(model.config, length, length) for length in ((9,) if is_small else (20, 9))]
    count = 5 if is_small else 100
    plain = [decode(model, [prompt], count, "off", **EVERYTHING)[0] for prompt in prompts]
    known = [prompt + each.output_ids for prompt, each in zip(prompts, plain, strict=True)]
    proposer = RandomTrees(known, 3, model.config.vocab_size)
    found = run_engine(make_engine(model, proposer, 3 if is_small else 12), prompts, count, **EVERYTHING)
    assert sum(each.stats.num_accepted for each in found) > 0
    for mine, want in zip(found, plain, strict=True):
        assert mine.output_ids == want.output_ids
        pairs = zip(mine.logprobs, want.logprobs, strict=True)
        assert all(abs(one.logprob - other.logprob) < 1e-3 for one, other in pairs)
        assert 5 not in mine.output_ids and len(mine.logprobs) == count
    model.executor.close()
