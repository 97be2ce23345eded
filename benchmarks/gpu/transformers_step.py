"""A decoding step of transformers with a static cache and torch.compile, on Llama-3.2-1B with random weights.

Run in a process of its own, which can be ended when time is up: python -m benchmarks.gpu.transformers_step
"""

import json
import time

import torch

PROMPT_TOKENS = 1024
COUNTS = (8, 72)
"""New tokens of the two runs whose difference is timed: prefill is in both."""


def build(device: torch.device) -> torch.nn.Module:
    """The model, in bfloat16, its weights random."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device(device):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def generate_s(model: torch.nn.Module, ids: torch.Tensor, count: int) -> float:
    """Seconds of a greedy run of `count` new tokens over a static cache, compiled with reduce-overhead."""
    from transformers import CompileConfig

    torch.cuda.synchronize()
    start = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        cache_implementation="static",
        compile_config=CompileConfig(mode="reduce-overhead", fullgraph=False),
    )
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure() -> dict[str, float]:
    """Milliseconds a token, host included: the least of three differences, after two runs that compile."""
    device = torch.device("cuda")
    torch.manual_seed(0)
    model = build(device)
    ids = torch.randint(0, 128256, (1, PROMPT_TOKENS), device=device)
    start = time.perf_counter()
    for count in (COUNTS[1], *COUNTS):
        generate_s(model, ids, count)
    compile_s = time.perf_counter() - start
    few, many = COUNTS
    steps = [(generate_s(model, ids, many) - generate_s(model, ids, few)) / (many - few) for _ in range(3)]
    return {"step_us": 1e6 * min(steps), "compile_s": compile_s}


if __name__ == "__main__":
    print(json.dumps(measure()))
