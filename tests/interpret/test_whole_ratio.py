"""Acceptance by ratio on the cuda lowering, through the whole loop: a seed's text is that of the CPU backend.

Both backends take the same noise and compute laws in float32, so they decide alike unless two numbers are as near to
one another as rounding; the seeds here have no such pair. The law of the texts is proven on the CPU backend.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_whole_ratio.py
"""

import pytest
from support.acceptance_drafts import Draft
from support.acceptance_noise import keyed_noise
from support.drawing import DRAFTS, FAR, TARGET, DrawingProposer
from support.engines import build, finish, outputs, with_proposer
from support.head_checkpoints import write_speculators
from support.table_model import logits_checkpoint
from support.tiny_heads import frequent_ids, tiny_eagle
from support.tiny_models import tiny_checkpoint

from tspec.build import load_config
from tspec.core.sampling_params import SamplingParams

VOCAB, NUM_TOKENS = 64, 6
SIZES = {"hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 48, "vocab": VOCAB}
DEVICE = {"device": "cuda", "max_model_len": 128, "max_num_seqs": 2, "kv_cache_mib": 2}
DRAWN = {"num_speculative_tokens": 3, "draft_sample_method": "probabilistic", "acceptance": "ratio"}
EDITED = {"bad_words": [[1]], "logprobs": 2, "repetition_penalty": 1.2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("ratio")
    tiny_checkpoint(root / "target", "llama", layers=2, **SIZES)
    tiny_checkpoint(root / "draft", "qwen3", layers=1, seed=1, **SIZES)
    head = tiny_eagle(load_config(root / "target"), 3, aux=(0, 1, 2), draft_ids=frequent_ids(VOCAB, 40))
    write_speculators(root / "eagle3", head)
    logits_checkpoint(root / "table", TARGET)
    return root


def decode(engine, prompts, **asked):
    """The sequences of prompts, each with a seed of its own, decoded together to their ends."""
    params = [SamplingParams(seed=seed, **asked) for seed in range(1, 1 + len(prompts))]
    sequences = [engine.add(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    finish(engine)
    return sequences


def verdicts(sequences):
    """Texts, and how many candidates there were and were accepted."""
    stats = [each.stats for each in sequences]
    return outputs(sequences), [(each.num_candidates, each.num_accepted) for each in stats]


def logprobs_of(sequence):
    return [each.logprob for each in sequence.logprobs or ()]


def on_both(folders, name, method):
    """A sequence of the CPU backend, and the same one of the cuda lowering; each in a list."""
    speculative = DRAWN | {"method": method, "model": folders / name}
    found = []
    for options in ({}, DEVICE):
        engine = build(folders / "target", speculative, **options)
        found.append(decode(engine, [[7]], max_tokens=NUM_TOKENS, temperature=4.0))
        assert "ratio_filtered" in {kind.split()[0] for kind in engine.metrics().passes}
        engine.close()
    return found


def test_every_candidate_of_a_draft_that_is_the_target_is_accepted(folders, cuda_in_interpreter):
    """A chain, verified as a block."""
    on_cpu, on_device = on_both(folders, "target", "draft_model")
    assert verdicts(on_device) == verdicts(on_cpu)
    ((candidates, accepted),) = verdicts(on_device)[1]
    assert accepted == candidates > 0


@pytest.mark.parametrize(("name", "method"), [("draft", "draft_model"), ("eagle3", "eagle3")])
def test_texts_of_refused_and_accepted_candidates_are_those_of_the_cpu(
    folders, cuda_in_interpreter, name, method
):
    """Chains, verified as blocks: of a draft model, and of a head that knows 40 of 64 tokens."""
    on_cpu, on_device = on_both(folders, name, method)
    assert verdicts(on_device) == verdicts(on_cpu)
    candidates, accepted = (sum(counts) for counts in zip(*verdicts(on_cpu)[1], strict=True))
    assert 0 < accepted < candidates


@pytest.mark.parametrize(("form", "asked"), [("blocks", {}), ("trees", EDITED)], ids=["blocks", "trees"])
def test_candidates_of_any_proposer_are_judged_as_on_the_cpu(folders, cuda_in_interpreter, form, asked):
    """Siblings are tested one after the other; edits are those of each node."""
    found = []
    for options in ({"max_model_len": 128}, DEVICE):
        engine = build(folders / "table", **options)
        drawing = DrawingProposer(Draft(FAR, noise=keyed_noise, **DRAFTS[form]))
        drawn = with_proposer(engine, drawing, max_num_seqs=2, node_budget=128, mixes_prompts=False)
        found.append(decode(drawn, ([0], [2]), temperature=1.0, max_tokens=8, **asked))
        kinds = {kind.split()[0] for kind in drawn.metrics().passes}
        assert ("ratio_edited" if asked else "ratio_filtered") in kinds
        engine.close()
    on_cpu, on_device = found
    assert verdicts(on_device) == verdicts(on_cpu)
    candidates, accepted = (sum(counts) for counts in zip(*verdicts(on_cpu)[1], strict=True))
    assert 0 < accepted < candidates
    for mine, theirs in zip(on_device, on_cpu, strict=True):
        assert logprobs_of(mine) == pytest.approx(logprobs_of(theirs), abs=1e-5)
        assert len(logprobs_of(mine)) == (8 if asked else 0)
        assert not asked or 1 not in mine.output_ids
