"""Requests that need their logits decode on the cuda lowering as on the CPU backend: edits, limits, log-probabilities.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_whole_requests.py
"""

import pytest
from support.interpreted import interpreted_engine
from support.tiny_models import tiny_checkpoint

from tspec import LLM, SamplingParams

PROMPT = [5, 9, 5, 9, 5, 9, 5]
NUM_TOKENS = 7
LIMITS = {"temperature": 1.2, "seed": 5, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "logprobs": 3}
EDITS = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.25,
    "logit_bias": {7: 2.0, 9: -3.0},
    "bad_words": [[5], [9, 6]],
}
REQUESTS = {
    "limits": LIMITS,
    "edits": LIMITS | EDITS,
    "greedy": EDITS,
    "prompt": {"prompt_logprobs": 2, "logprobs": 0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("qwen3")
    tiny_checkpoint(place, "qwen3", hidden=32, heads=2, kv_heads=1, intermediate=48, vocab=64, layers=1)
    return place


def near(found, wanted):
    """Log-probabilities of the same tokens, the chosen one and the likeliest, that differ by rounding alone."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=2e-5)
        assert list(dict(one.top)) == list(dict(other.top))
        assert dict(one.top) == pytest.approx(dict(other.top), abs=2e-5)


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_request_gets_the_tokens_and_log_probabilities_of_the_cpu_backend(folder, request_name):
    asked = {"max_tokens": NUM_TOKENS, "ignore_eos": True} | REQUESTS[request_name]
    with LLM(folder, max_model_len=128) as llm:
        wanted = llm.generate(PROMPT, SamplingParams(**asked))[0]
    engine = interpreted_engine(folder)
    sequence = engine.add(PROMPT, SamplingParams(**asked))
    while engine.has_work:
        engine.step()
    assert sequence.output_ids == wanted.token_ids
    near(sequence.logprobs, wanted.logprobs or [])
    near(sequence.prompt_logprobs, (wanted.prompt_logprobs or [None])[1:])
