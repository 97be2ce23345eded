"""Whatever a request asks for, all native code that it needs is there before the first one comes.

Run: pytest tests/test_llm_first_requests.py
"""

import os
import subprocess
import sys

PROGRAM = """
import gc, sys
from numba.core.registry import CPUDispatcher
from tspec import LLM, SamplingParams
from tspec.constraints import regex

def loaded():
    found = [each for each in gc.get_objects() if isinstance(each, CPUDispatcher)]
    return {f"{each.py_func.__module__}.{each.py_func.__name__}": len(each.overloads) for each in found}

NGRAM = {"method": "ngram", "prompt_lookup_min": 1}
with LLM(sys.argv[1], speculative_config=NGRAM, num_threads=1, max_num_seqs=4) as llm:
    before = loaded()
    kinds = [
        {}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 9, "top_p": 0.9, "min_p": 0.01}, {"logprobs": 2},
        {"repetition_penalty": 1.2, "logit_bias": {5: 1.0}, "bad_words": [[7]], "min_tokens": 2},
        {"prompt_logprobs": 1}, {"stop": ["a", "qu"], "n": 3, "temperature": 0.5},
        {"constraint": regex("[a-f]{3,9}", llm.tokenizer)},
    ]
    for params in kinds:
        llm.generate(["abcabcabc", "x" * 100], SamplingParams(max_tokens=12, **params))
    after = loaded()
print(len(before), before.get("tspec.kernels.cpu.program.step"))
print({name: count for name, count in after.items() if count != before.get(name)})
"""


def test_no_request_waits_for_a_compiler(tiny_folder):
    """Nor for native code to be read from the cache: each function that is called at all is there after the start."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", PROGRAM, str(tiny_folder)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    there, late = done.stdout.splitlines()
    assert there.endswith(" 1"), "what runs a pass is compiled once, at the start"
    assert late == "{}"
