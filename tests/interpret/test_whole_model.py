"""A tiny model of each family decodes on the cuda lowering as on the CPU backend, plain and with n-gram.

Sampled tokens are equal because both backends draw the same bits. Their float32 numbers differ in the last places; if
two tokens were that near, they could part, and another seed would have to be taken here.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_whole_model.py
"""

import numpy as np
import pytest
from support.interpreted import interpreted_engine
from support.tiny_models import ARCHITECTURES, tiny_checkpoint

from tspec import LLM, SamplingParams

PROMPT = [5, 9, 5, 9, 5, 9, 5]
NUM_TOKENS = 10


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    tiny_checkpoint(place, request.param, hidden=32, heads=2, kv_heads=1, intermediate=48, vocab=64, layers=1)
    return place


GREEDY = {}
SAMPLED = {"temperature": 0.8, "seed": 11}


def params(asked, speculative="auto"):
    return SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, speculative=speculative, **asked)


def on_the_cpu(folder, asked):
    with LLM(folder, max_model_len=128) as llm:
        return llm.generate(PROMPT, params(asked))[0]


def decode(engine, asked, speculative):
    sequence = engine.add(PROMPT, params(asked, speculative))
    while engine.has_work:
        engine.step()
    return sequence


@pytest.mark.parametrize("asked", [GREEDY, SAMPLED], ids=("greedy", "sampled"))
def test_the_cuda_lowering_decodes_as_the_cpu_backend(folder, asked):
    expected = on_the_cpu(folder, asked).token_ids
    engine = interpreted_engine(folder)
    plain, fast = decode(engine, asked, "off"), decode(engine, asked, "auto")
    assert plain.output_ids == fast.output_ids == expected
    assert fast.stats.num_candidates > 0
    assert plain.stats.num_passes == NUM_TOKENS - 1
    assert np.all(np.array(expected) < 64)
