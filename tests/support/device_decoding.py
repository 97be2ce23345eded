"""Engines on RandomModels, as build.py makes those of a device, and texts of theirs."""

import numpy as np

from tspec.core.sampling_params import SamplingParams
from tspec.core.tree import MAX_NODES
from tspec.runtime.loop import Engine


def make_engine(model, proposer, num_candidates):
    return Engine(
        model.config,
        model.executor,
        proposer,
        max_model_len=model.max_model_len,
        max_num_seqs=len(model.tables),
        max_candidates=num_candidates,
        node_budget=MAX_NODES,
        mixes_prompts=False,  # as build.py has it for a device
    )


def run_engine(engine, prompts, max_tokens, speculative="auto", **asked):
    """Decode prompts together to their ends."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, speculative=speculative, **asked)
    sequences = [engine.add(prompt, params) for prompt in prompts]
    while engine.has_work:
        engine.step()
    return sequences


def repeating(config, count, seed):
    """A prompt in which a run of tokens comes again and again."""
    run = np.random.default_rng(seed).integers(0, config.vocab_size, 7).tolist()
    return (run * count)[:count]
